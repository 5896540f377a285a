"""One module for each program. `outputs(onnxruntime, folder)` is the program: it gets the module of that name, and
returns what the library gave. `prepare(folder)`, where there is one, makes models in a process of its own before."""
