// The timeline: which run is shown and which part of it, and what is told of the span that is pointed at.

class Timeline {
  constructor(runs, causes, home) {
    this.runs = runs;
    this.causes = causes;
    this.marked = { hovered: null, selected: null, cause: null };
    this.view = { from: 0, to: 1, left: 0, right: 10, scroll: 0 };
    this.pointers = new Map();
    this.build(home);
    this.drawing = new Drawing(this.canvas, causes);
    this.listen();
  }

  build(home) {
    this.select = element("select");
    for (const run of this.runs) this.select.append(option(run));
    const zoomIn = button("+", "Zoom in", () => this.zoom(0.5));
    const zoomOut = button("−", "Zoom out", () => this.zoom(2));
    const whole = button("All", "Show the whole run", () => this.showAll());
    const toolbar = element("div", "toolbar");
    const label = element("label", "", "Run ");
    label.append(this.select);
    toolbar.append(label, zoomIn, zoomOut, whole);
    this.canvas = element("canvas");
    this.spacer = element("div");
    this.scroller = element("div", "view");
    this.scroller.tabIndex = 0;
    this.scroller.setAttribute("role", "application");
    this.scroller.setAttribute("aria-label", "Timeline. Arrow keys go from span to span, plus and minus zoom.");
    this.scroller.append(this.canvas, this.spacer);
    this.tip = element("div", "tip");
    this.tip.hidden = true;
    this.tip.setAttribute("aria-hidden", "true");
    const stage = element("div", "stage");
    stage.append(this.scroller, this.tip);
    this.details = element("div", "details");
    this.details.setAttribute("role", "status");
    this.legend = element("div", "causes");
    this.legend.setAttribute("role", "group");
    this.legend.setAttribute("aria-label", "Emphasize a cause");
    home.append(toolbar, stage, this.details, this.legend, keysHelp());
    home.hidden = false;
  }

  listen() {
    const view = this.scroller;
    this.select.addEventListener("change", () => this.show(this.runs[this.select.selectedIndex]));
    view.addEventListener("keydown", (event) => this.key(event));
    view.addEventListener("pointermove", (event) => this.move(event));
    view.addEventListener("pointerdown", (event) => this.press(event));
    for (const name of ["pointerup", "pointercancel"]) view.addEventListener(name, (event) => this.release(event));
    view.addEventListener("pointerleave", () => this.hover(null));
    view.addEventListener("dblclick", () => this.zoomTo(this.marked.selected));
    view.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    view.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.fit()).observe(view);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      window.matchMedia(query).addEventListener("change", () => this.fit());
    }
    window.addEventListener("beforeprint", () => {
      for (const folded of document.querySelectorAll("details")) folded.open = true;
      this.fit();
    });
  }

  show(run) {
    this.run = run;
    this.select.selectedIndex = this.runs.indexOf(run);
    this.marked = { hovered: null, selected: null, cause: null };
    this.fit(true);
    this.describe(null);
    this.buildLegend();
  }

  fit(whole = false) {
    const width = this.scroller.clientWidth;
    if (!this.run || !width) return;
    const wide = width >= 640;
    this.geometry = { ruler: 28, lane: 20, gap: 10, labelAbove: wide ? 0 : 19, least: wide ? 34 : 0 };
    this.view.left = wide ? 150 : 6;
    this.layout = layOut(this.run, this.geometry);
    for (const lane of this.layout.lanes) for (const span of lane.spans) span.lane = lane;
    if (whole) this.view = { ...this.view, from: 0, to: this.layout.end };
    const limit = matchMedia("print").matches ? Infinity : 620;
    const height = Math.min(this.layout.height, limit);
    this.spacer.style.height = `${this.layout.height - height}px`;
    this.drawing.resize(this.scroller.clientWidth, height);
    this.paint();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    this.view.scroll = this.scroller.scrollTop;
    this.drawing.draw(this.layout, this.geometry, this.view, this.marked);
    this.placeTip(this.marked.hovered || this.marked.selected);
  }

  // --- which part is shown

  setView(from, to) {
    const least = this.layout.end * 1e-6;
    const length = Math.min(Math.max(to - from, least), this.layout.end);
    const start = Math.min(Math.max(from, 0), this.layout.end - length);
    this.view.from = start;
    this.view.to = start + length;
    this.draw();
  }

  zoom(factor, around) {
    const selected = this.marked.selected;
    const { from, to } = this.view;
    const middle = around ?? (selected ? (selected.start + selected.end) / 2 : (from + to) / 2);
    const centre = middle < from || middle > to ? (from + to) / 2 : middle;
    this.setView(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }

  zoomTo(span) {
    if (!span) return;
    const margin = (span.end - span.start) * 0.15 || this.layout.end * 1e-5;
    this.setView(span.start - margin, span.end + margin);
  }

  showAll() {
    this.setView(0, this.layout.end);
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.004), this.drawing.time(this.place(event).x, this.view));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan(event.deltaX || event.deltaY);
    }
  }

  pan(pixels) {
    const { from, to, left, right } = this.view;
    const shift = (pixels / (this.drawing.width - left - right)) * (to - from);
    this.setView(from + shift, to + shift);
  }

  // --- pointers

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  at(event) {
    const { x, y } = this.place(event);
    if (x < this.view.left || y < this.geometry.ruler) return null;
    const line = y + this.view.scroll;
    const lane = this.layout.lanes.find((one) => line >= one.top - 1 && line < one.top + this.geometry.lane - 1);
    if (!lane) return null;
    const slack = this.drawing.time(3, this.view) - this.drawing.time(0, this.view);
    return spanAt(lane, this.drawing.time(x, this.view), slack);
  }

  press(event) {
    this.pointers.set(event.pointerId, { x: event.clientX, began: event.clientX });
  }

  move(event) {
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) {
      this.hover(this.at(event));
      return;
    }
    const others = [...this.pointers.entries()].filter(([id]) => id !== event.pointerId);
    const step = event.clientX - pointer.x;
    if (others.length === 1) {
      const other = others[0][1].x;
      const before = Math.max(20, Math.abs(pointer.x - other));
      const after = Math.max(20, Math.abs(event.clientX - other));
      const middle = (event.clientX + other) / 2 - this.canvas.getBoundingClientRect().left;
      this.zoom(before / after, this.drawing.time(middle, this.view));
    } else if (Math.abs(event.clientX - pointer.began) > 4) {
      this.hover(null);
      this.pan(-step);
    }
    pointer.x = event.clientX;
  }

  release(event) {
    const pointer = this.pointers.get(event.pointerId);
    this.pointers.delete(event.pointerId);
    if (event.type === "pointerup" && pointer && Math.abs(event.clientX - pointer.began) <= 4) this.mark(this.at(event));
  }

  hover(span) {
    if (span === this.marked.hovered) return;
    this.marked.hovered = span;
    this.describe(span || this.marked.selected);
    this.draw();
  }

  mark(span) {
    this.marked.selected = span;
    this.describe(span);
    this.draw();
  }

  // --- keys

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const action = {
      ArrowRight: () => this.along(1),
      ArrowLeft: () => this.along(-1),
      ArrowDown: () => this.across(1),
      ArrowUp: () => this.across(-1),
      Home: () => this.choose(this.marked.selected?.lane.spans[0] ?? this.layout.lanes[0].spans[0]),
      End: () => this.choose((this.marked.selected?.lane ?? this.layout.lanes[0]).spans.at(-1)),
      Enter: () => this.zoomTo(this.marked.selected),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.showAll(),
      Escape: () => {
        this.mark(null);
        this.showAll();
      },
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  along(step) {
    const selected = this.marked.selected;
    if (!selected) return this.choose(this.layout.lanes[0].spans[0]);
    const { spans } = selected.lane;
    return this.choose(spans[spans.indexOf(selected) + step]);
  }

  across(step) {
    const selected = this.marked.selected;
    if (!selected) return this.choose(this.layout.lanes[0].spans[0]);
    const lane = this.layout.lanes[selected.lane.number + step];
    return this.choose(lane && nearestSpan(lane, (selected.start + selected.end) / 2));
  }

  choose(span) {
    if (!span) return;
    const { from, to, scroll } = this.view;
    if (span.end < from || span.start > to) {
      const middle = (span.start + span.end) / 2;
      this.setView(middle - (to - from) / 2, middle + (to - from) / 2);
    }
    const top = span.lane.top;
    if (top - scroll < this.geometry.ruler) this.scroller.scrollTop = top - this.geometry.ruler - this.geometry.gap;
    const under = top + this.geometry.lane - this.drawing.height;
    if (under > scroll) this.scroller.scrollTop = under + this.geometry.gap;
    this.view.scroll = this.scroller.scrollTop;
    this.mark(span);
  }

  // --- what is told

  describe(span) {
    this.details.replaceChildren();
    if (!span) {
      this.details.append(element("p", "", "Point at a span, or go from one to another with the arrow keys."));
      return;
    }
    const length = span.end - span.start;
    const cause = this.causes.get(span.cause);
    const list = element("dl");
    const facts = [
      ["Name", cleanText(span.name), "name"],
      ["Cause", cause.explanation ? `${cause.title}: ${cause.explanation}` : cause.title, "whole"],
      ["Device", cleanText(span.device || "none") + (span.session === null || span.session === undefined ? "" : `, session ${span.session}`)],
      ["Thread", String(span.thread)],
      ["Start", startText(span)],
      ["Length", `${secondsText(length)}, ${((100 * length) / this.layout.end).toFixed(1)}%`],
      ["On the CPU", cpuText(span, length)],
    ];
    for (const [name, text, kind] of facts) {
      const fact = element("div", kind ? "whole" : "");
      fact.append(element("dt", "", name), element("dd", kind || "", text));
      list.append(fact);
    }
    this.details.append(list);
  }

  placeTip(span) {
    this.tip.hidden = !span || span.end < this.view.from || span.start > this.view.to;
    if (this.tip.hidden) return;
    const length = span.end - span.start;
    this.tip.replaceChildren(
      element("b", "", cleanText(span.name)),
      document.createTextNode(`${this.causes.get(span.cause).title}, from ${startText(span)} on for ${secondsText(length)}, ${cpuText(span, length)} on the CPU`),
    );
    const { view, drawing, geometry } = this;
    const from = Math.max(drawing.x(span.start, view), view.left);
    const to = Math.min(drawing.x(span.end, view), drawing.width);
    const left = Math.min(Math.max(4, (from + to) / 2 - this.tip.offsetWidth / 2), drawing.width - this.tip.offsetWidth - 4);
    const below = span.lane.top - view.scroll + geometry.lane + 6;
    const fits = below + this.tip.offsetHeight < drawing.height + 70;
    this.tip.style.left = `${Math.max(2, left)}px`;
    this.tip.style.top = `${fits ? below : span.lane.top - view.scroll - this.tip.offsetHeight - 8}px`;
  }

  buildLegend() {
    const present = new Set(this.run.spans.map((span) => span.cause));
    const seconds = this.run.causes || {};
    this.legend.replaceChildren();
    for (const [name, cause] of this.causes) {
      if (!present.has(name)) continue;
      const entry = button("", "", () => this.emphasize(name, entry));
      entry.append(swatch(cause), document.createTextNode(`${cleanText(cause.title)} `));
      if (seconds[name]) entry.append(element("small", "", secondsText(seconds[name])));
      entry.title = cause.explanation;
      entry.setAttribute("aria-pressed", "false");
      this.legend.append(entry);
    }
  }

  emphasize(name, entry) {
    this.marked.cause = this.marked.cause === name ? null : name;
    for (const other of this.legend.children) {
      other.setAttribute("aria-pressed", String(other === entry && this.marked.cause === name));
    }
    this.draw();
  }
}
