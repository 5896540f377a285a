"use strict";
// What is where on the timeline: rows of one device and thread, in them lanes, in them spans that do not overlap.

function deviceOrder(device) {
  const [kind, number] = device.split(":");
  return [device === "" ? 0 : device === "cpu" ? 1 : 2, kind, Number(number) || 0];
}

function compare(one, other) {
  for (let i = 0; i < one.length; i++) {
    if (one[i] < other[i]) return -1;
    if (one[i] > other[i]) return 1;
  }
  return 0;
}

// A span that is part of another lies in the lane below it.
function fillLanes(spans) {
  const lanes = [];
  for (const span of spans) {
    let lane = lanes.findIndex((filled) => filled[filled.length - 1].end <= span.start);
    if (lane < 0) lane = lanes.push([]) - 1;
    lanes[lane].push(span);
  }
  return lanes;
}

function layOut(run, geometry) {
  const groups = new Map();
  for (const span of run.spans) {
    // What was done for a session, and on no device, is shown with what was done on the session's device.
    const device = span.device || (run.devices && run.devices[span.session]) || "";
    const key = JSON.stringify([device, span.thread]);
    if (!groups.has(key)) groups.set(key, { device, thread: span.thread, spans: [] });
    groups.get(key).spans.push(span);
  }
  const rows = [...groups.values()];
  for (const row of rows) row.spans.sort((a, b) => a.start - b.start || b.end - a.end);
  const order = new Map(rows.map((row) => [row, [...deviceOrder(row.device), row.spans[0].start, row.thread]]));
  rows.sort((a, b) => compare(order.get(a), order.get(b)));
  const lanes = [];
  let top = geometry.ruler + geometry.gap;
  for (const row of rows) {
    const sessions = new Set(row.spans.map((span) => span.session).filter((session) => session !== null && session !== undefined));
    row.label = row.device || "process";
    row.sublabel = (sessions.size === 1 ? `session ${[...sessions][0]}, ` : "") + `thread ${row.thread}`;
    row.top = top;
    top += geometry.labelAbove;
    for (const spans of fillLanes(row.spans)) {
      lanes.push({ row, spans, top, number: lanes.length });
      top += geometry.lane;
    }
    top = Math.max(top, row.top + geometry.least) + geometry.gap;
    row.bottom = top - geometry.gap / 2;
  }
  let end = run.wall || 0;
  for (const span of run.spans) end = Math.max(end, span.end);
  return { rows, lanes, height: top, end: end || 1 };
}

// The span of a lane at `time`, or one that ends or begins at most `slack` seconds from it.
function spanAt(lane, time, slack) {
  let low = 0;
  let high = lane.spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.spans[middle].start <= time) low = middle + 1;
    else high = middle;
  }
  let best = null;
  let distance = slack;
  for (const span of [lane.spans[low - 1], lane.spans[low]]) {
    if (!span) continue;
    const away = Math.max(0, span.start - time, time - span.end);
    if (away <= distance && !(best && away === distance)) {
      best = span;
      distance = away;
    }
  }
  return best;
}

function nearestSpan(lane, time) {
  return spanAt(lane, time, Infinity);
}

function secondsText(value) {
  if (value >= 99.95) return `${value.toFixed(0)} s`;
  if (value >= 9.995) return `${value.toFixed(1)} s`;
  if (value >= 0.9995) return `${value.toFixed(2)} s`;
  if (value >= 0.0995) return `${(value * 1e3).toFixed(0)} ms`;
  if (value >= 0.0000995) return `${(value * 1e3).toFixed(value >= 0.00995 ? 1 : 2)} ms`;
  return `${(value * 1e6).toFixed(1)} µs`;
}

// Ticks at round times, about `count` of them, with texts that tell them apart.
function ticks(from, to, count) {
  const raw = (to - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const [unit, scale] = step >= 0.1 ? ["s", 1] : step >= 1e-4 ? ["ms", 1e3] : ["µs", 1e6];
  const digits = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
  const found = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) {
    found.push({ time: i * step, text: `${(i * step * scale).toFixed(digits)} ${unit}` });
  }
  return found;
}
