// Draws what is visible of a layout on a canvas.

class Drawing {
  constructor(canvas, causes) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.causes = causes;
    this.hatch = this.makeHatch();
  }

  makeHatch() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const context = tile.getContext("2d");
    context.strokeStyle = "rgb(0 0 0 / 0.42)";
    context.lineWidth = 2;
    context.beginPath();
    for (const shift of [-8, 0, 8]) {
      context.moveTo(shift - 1, 9);
      context.lineTo(shift + 9, -1);
    }
    context.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = width;
    this.height = height;
    const style = getComputedStyle(document.documentElement);
    this.colours = {};
    for (const name of ["page", "text", "muted", "line", "edge"]) {
      this.colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    this.font = getComputedStyle(document.body).fontFamily;
  }

  x(time, view) {
    return view.left + ((time - view.from) / (view.to - view.from)) * (this.width - view.left - view.right);
  }

  time(x, view) {
    return view.from + ((x - view.left) / (this.width - view.left - view.right)) * (view.to - view.from);
  }

  draw(layout, geometry, view, marked) {
    const { context: c, colours } = this;
    c.fillStyle = colours.page;
    c.fillRect(0, 0, this.width, this.height);
    const marks = ticks(view.from, view.to, (this.width - view.left) / 80);
    c.strokeStyle = colours.line;
    c.lineWidth = 1;
    c.beginPath();
    for (const mark of marks) {
      const x = Math.round(this.x(mark.time, view)) + 0.5;
      c.moveTo(x, geometry.ruler);
      c.lineTo(x, this.height);
    }
    c.stroke();
    this.rowLines(layout, view);
    c.save();
    c.beginPath();
    c.rect(view.left, geometry.ruler, this.width - view.left, this.height);
    c.clip();
    for (const lane of layout.lanes) {
      const top = lane.top - view.scroll;
      if (top > this.height || top + geometry.lane < geometry.ruler) continue;
      this.lane(lane, top, geometry.lane - 2, view, marked.cause);
    }
    for (const [span, width] of [[marked.hovered, 1.5], [marked.selected, 2.5]]) this.outline(span, width, geometry, view);
    c.restore();
    this.labels(layout, geometry, view);
    this.ruler(marks, geometry, view);
  }

  rowLines(layout, view) {
    const c = this.context;
    c.strokeStyle = this.colours.line;
    c.beginPath();
    for (const row of layout.rows.slice(0, -1)) {
      const y = Math.round(row.bottom - view.scroll) + 0.5;
      c.moveTo(0, y);
      c.lineTo(this.width, y);
    }
    c.stroke();
  }

  lane(lane, top, height, view, emphasised) {
    const c = this.context;
    let drawn = -1;
    c.lineWidth = 1;
    c.font = `12px ${this.font}`;
    for (const span of lane.spans) {
      if (span.end < view.from) continue;
      if (span.start > view.to) break;
      const left = Math.max(this.x(span.start, view), view.left - 2);
      const right = Math.min(this.x(span.end, view), this.width + 2);
      // What is narrower than a pixel beside what is drawn already cannot be seen.
      if (right - drawn < 0.6 && right - left < 1) continue;
      const cause = this.causes.get(span.cause);
      const width = Math.max(right - left - (right - left > 4 ? 1 : 0), 1);
      c.globalAlpha = emphasised === null || emphasised === span.cause ? 1 : 0.16;
      c.fillStyle = cause.colour;
      c.fillRect(left, top, width, height);
      if (cause.hatched && width > 3) {
        c.fillStyle = this.hatch;
        c.fillRect(left, top, width, height);
      }
      if (width > 4) {
        c.strokeStyle = this.colours.edge;
        c.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
      }
      if (width > 34) this.label(span, cause, left, top, width, height);
      drawn = right;
    }
    c.globalAlpha = 1;
  }

  label(span, cause, left, top, width, height) {
    const c = this.context;
    const room = width - 8;
    let text = cleanText(span.name).slice(0, 120);
    if (c.measureText(text).width > room) {
      const letters = Math.floor((room / c.measureText(text).width) * text.length) - 1;
      if (letters < 3) return;
      text = `${text.slice(0, letters)}…`;
    }
    if (cause.hatched) {
      c.fillStyle = cause.colour;
      c.fillRect(left + 2, top + 2, Math.min(room + 4, c.measureText(text).width + 6), height - 4);
    }
    c.fillStyle = cause.ink;
    c.textBaseline = "middle";
    c.fillText(text, left + 4, top + height / 2 + 0.5);
  }

  outline(span, width, geometry, view) {
    if (!span) return;
    const left = this.x(span.start, view);
    const right = Math.max(this.x(span.end, view), left + 2);
    const top = span.lane.top - view.scroll;
    this.context.strokeStyle = this.colours.text;
    this.context.lineWidth = width;
    this.context.strokeRect(left - 1, top - 1, right - left + 1, geometry.lane);
  }

  labels(layout, geometry, view) {
    const c = this.context;
    if (!geometry.labelAbove) {
      c.fillStyle = this.colours.page;
      c.fillRect(0, geometry.ruler, view.left - 1, this.height);
      this.rowLines(layout, view);
    }
    c.textBaseline = "middle";
    for (const row of layout.rows) {
      const y = row.top - view.scroll + (geometry.labelAbove ? 8 : geometry.lane / 2);
      if (y < 0 || y > this.height) continue;
      c.fillStyle = this.colours.text;
      c.font = `600 12px ${this.font}`;
      const label = this.clip(cleanText(row.label), geometry.labelAbove ? this.width / 2 : view.left - 14);
      c.fillText(label, 8, y);
      const wide = c.measureText(label).width;
      c.fillStyle = this.colours.muted;
      c.font = `11px ${this.font}`;
      if (geometry.labelAbove) c.fillText(row.sublabel, 16 + wide, y);
      else c.fillText(this.clip(row.sublabel, view.left - 14), 8, y + 15);
    }
  }

  clip(text, room) {
    if (this.context.measureText(text).width <= room) return text;
    let short = text.slice(0, 80);
    while (short && this.context.measureText(`${short}…`).width > room) short = short.slice(0, -1);
    return `${short}…`;
  }

  ruler(marks, geometry, view) {
    const c = this.context;
    c.fillStyle = this.colours.page;
    c.fillRect(0, 0, this.width, geometry.ruler);
    c.fillStyle = this.colours.muted;
    c.font = `12px ${this.font}`;
    c.textBaseline = "middle";
    for (const mark of marks) {
      const x = this.x(mark.time, view);
      const wide = c.measureText(mark.text).width;
      if (x < view.left - 1 || x - wide / 2 > this.width) continue;
      c.fillText(mark.text, Math.min(Math.max(x - wide / 2, 4), this.width - wide - 4), geometry.ruler / 2);
    }
    c.fillStyle = this.colours.line;
    c.fillRect(0, geometry.ruler - 1, this.width, 1);
  }
}

// Names may hold what would change the direction of the text, or end it.
function cleanText(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
}
