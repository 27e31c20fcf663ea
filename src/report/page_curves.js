'use strict';
// Helpers, and curves as inline SVG. A curve's data never become markup: text goes in as text.
const SVG = 'http://www.w3.org/2000/svg';

function make(tag, attributes, ...children) {
  const svg = ['svg', 'path', 'line', 'text', 'g', 'rect', 'circle'].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style') node.style.cssText = value;
    else node.setAttribute(name, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '-';
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  for (const [unit, name] of [[1e12, ' T'], [1e9, ' G'], [1e6, ' M'], [1e4, ' k', 1e3]]) {
    if (size >= unit) return (value / (name === ' k' ? 1e3 : unit)).toPrecision(4) + name;
  }
  return String(Number(value.toPrecision(5)));
}

function showBytes(bytes) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (Math.abs(bytes) >= 999.5 && unit + 1 < units.length) { bytes /= 1e3; ++unit; }
  return (unit === 0 ? bytes.toFixed(0) : bytes.toPrecision(3)) + ' ' + units[unit];
}

// `us`: microseconds.
function showTime(us) {
  if (us < 1000) return us.toFixed(1) + ' us';
  if (us < 1e6) return (us / 1e3).toPrecision(4) + ' ms';
  return (us / 1e6).toPrecision(4) + ' s';
}

// About `count` round numbers in [low, high].
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.75);
  const list = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) list.push(v);
  return list;
}

function range(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value === null || !Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) return [0, 1];
  if (low === high) return [low - Math.abs(low) * 0.05 - 1e-12, high + Math.abs(high) * 0.05 + 1e-12];
  return [low, high];
}

// series: [{name, x: [...], y: [...], color, points}]. null in y is a gap.
function curve(title, unit, series, options) {
  const kept = series.filter((s) => s.x.length > 0);
  if (kept.length === 0) return null;
  const width = 420, height = 210, left = 52, right = 10, top = 8, bottom = 24;
  const [x0, x1] = range(kept.map((s) => s.x));
  let [y0, y1] = range(kept.map((s) => s.y));
  if (options && options.zero) y0 = Math.min(0, y0);
  const pad = (y1 - y0) * 0.05;
  if (!(options && options.zero)) y0 -= pad;
  y1 += pad;
  const px = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (width - left - right);
  const py = (y) => height - bottom - ((y - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const svg = make('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  for (const y of ticks(y0, y1, 4)) {
    svg.append(make('line', { x1: left, x2: width - right, y1: py(y), y2: py(y), stroke: 'var(--grid)' }));
    svg.append(make('text', { x: left - 6, y: py(y) + 4, 'text-anchor': 'end' }, short(y)));
  }
  for (const x of ticks(x0, x1, 5)) {
    svg.append(make('text', { x: px(x), y: height - 7, 'text-anchor': 'middle' }, short(x)));
  }
  for (const s of kept) {
    let path = '', pen = 'M';
    s.x.forEach((x, i) => {
      if (s.y[i] === null || !Number.isFinite(s.y[i])) { pen = 'M'; return; }
      path += `${pen}${px(x).toFixed(1)} ${py(s.y[i]).toFixed(1)}`;
      pen = 'L';
    });
    svg.append(make('path', {
      d: path, fill: 'none', stroke: s.color, 'stroke-width': 1.8, 'stroke-linejoin': 'round',
      class: 'curve', 'stroke-dasharray': s.dash ? '7 4' : 'none',
    }));
    if (s.x.length <= 40) {
      s.x.forEach((x, i) => {
        if (s.y[i] !== null) svg.append(make('circle', { cx: px(x), cy: py(s.y[i]), r: 2.2, fill: s.color }));
      });
    }
  }
  const cursor = make('line', { y1: top, y2: height - bottom, stroke: 'var(--faint)', 'stroke-dasharray': '3 3' });
  cursor.style.display = 'none';
  svg.append(cursor);
  const value = make('div', { class: 'value' });
  const place = (x) => (options && options.unit ? `at ${short(x)} ${options.unit}` : `at step ${short(x)}`);
  const rest = () => {
    cursor.style.display = 'none';
    value.textContent = kept.map((s) => {
      const last = s.y[s.y.length - 1];
      return `${s.name ? s.name + ': ' : ''}${short(last)} ${place(s.x[s.x.length - 1])}`;
    }).join('   ');
  };
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    const x = x0 + (((event.clientX - box.left) / box.width) * width - left) / (width - left - right) * (x1 - x0);
    value.textContent = kept.map((s) => {
      let best = 0;
      s.x.forEach((at, i) => { if (Math.abs(at - x) < Math.abs(s.x[best] - x)) best = i; });
      cursor.setAttribute('x1', px(s.x[best]));
      cursor.setAttribute('x2', px(s.x[best]));
      return `${s.name ? s.name + ': ' : ''}${short(s.y[best])} ${place(s.x[best])}`;
    }).join('   ');
    cursor.style.display = '';
  };
  svg.addEventListener('pointermove', move);
  svg.addEventListener('pointerleave', rest);
  rest();
  return make('div', { class: 'plot' }, make('h3', {}, title + (unit ? ` (${unit})` : '')), svg, value);
}
