#pragma once

namespace ortmulti {

/// Counts the forks between the first process and this one: what was started under another number belongs to a
/// parent process, whose threads and CUDA contexts this process does not have. Forks before the first call do not
/// count.
unsigned fork_generation();

/// Calls `handler` in every forked child, before fork() returns there. Only a handful of handlers: one a module.
/// They may not wait for locks, since the thread that held one may not exist in the child.
void on_fork_in_child(void (*handler)());

}  // namespace ortmulti
