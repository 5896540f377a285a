// Small pieces, and the start.

function element(tag, kind = "", text = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

function button(text, label, action) {
  const made = element("button", "", text);
  made.type = "button";
  if (label) {
    made.setAttribute("aria-label", label);
    made.title = label;
  }
  made.addEventListener("click", action);
  return made;
}

function swatch(cause) {
  const space = "http://www.w3.org/2000/svg";
  const drawn = document.createElementNS(space, "svg");
  drawn.setAttribute("class", "swatch");
  for (const [name, value] of [["width", 14], ["height", 14], ["aria-hidden", "true"]]) drawn.setAttribute(name, value);
  for (const fill of cause.hatched ? [cause.colour, "url(#hatch)"] : [cause.colour]) {
    const square = document.createElementNS(space, "rect");
    for (const [name, value] of [["width", 14], ["height", 14], ["rx", 3], ["fill", fill]]) square.setAttribute(name, value);
    drawn.append(square);
  }
  return drawn;
}

function option(run) {
  const where = run.devices.length > 1 ? `${run.devices.length} ${new Set(run.devices).size < run.devices.length ? "sessions" : "devices"}` : run.devices[0] || "";
  const parts = [run.way, where];
  if (run.experiment !== "trace") parts.unshift(run.experiment);
  if (run.cache && run.cache !== "warm") parts.push(`${run.cache} cache`);
  if (run.error) parts.push("failed");
  const length = run.wall === undefined || run.wall === null ? "" : `: ${secondsText(run.wall)}`;
  return element("option", "", cleanText(parts.join(", ") + length));
}

function cpuText(span, length) {
  if (span.cpu === null || span.cpu === undefined || !length) return "unknown";
  return `${Math.min(100, (100 * span.cpu) / length).toFixed(0)}%`;
}

function startText(span) {
  return `${(span.start * 1e3).toFixed(span.start < 1 ? 2 : 1)} ms`;
}

function keysHelp() {
  const help = element("p", "keys");
  const parts = ["←→", " along a thread, ", "↑↓", " between them, ", "+", " ", "−", " zoom, ", "Enter", " to the span, ", "0", " all. Drag to move; Ctrl and the wheel zoom."];
  parts.forEach((text, i) => help.append(i % 2 ? document.createTextNode(text) : element("kbd", "", text)));
  return help;
}

function parsed(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

(function start() {
  const home = document.getElementById("drawn");
  if (!home) return;
  const all = parsed("document").runs;
  const runs = all.filter((run) => run.spans && run.spans.length);
  const causes = new Map(parsed("causes").map((cause) => [cause.name, cause]));
  const timeline = new Timeline(runs, causes, home);
  timeline.show(all[parsed("shown")]);
  for (const row of document.querySelectorAll(".row[data-run]")) {
    const run = all[Number(row.dataset.run)];
    const bar = row.querySelector("svg.bar");
    bar.addEventListener("click", () => {
      timeline.show(run);
      document.getElementById("timeline").scrollIntoView();
    });
  }
})();
