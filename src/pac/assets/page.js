// Show the values under the pointer. charts.py defines WIDTH, LEFT and SPAN.
const tip = document.createElement("div");
tip.style.cssText = "position:fixed;pointer-events:none;background:var(--ink);color:var(--paper);" +
  "padding:.25rem .5rem;border-radius:4px;font-size:.78rem;line-height:1.4;white-space:pre;" +
  "display:none;z-index:9;max-width:90vw";
document.body.append(tip);
for (const svg of document.querySelectorAll("svg[data-plot]")) {
  const plot = JSON.parse(svg.dataset.plot);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const at = plot.low + ((event.clientX - box.left) * WIDTH / box.width - LEFT) / SPAN * (plot.high - plot.low);
    let best = null;
    for (const s of plot.series) for (const x of s.x)
      if (best === null || Math.abs(x - at) < Math.abs(best - at)) best = x;
    const lines = plot.series.filter(s => s.x.includes(best)).map(s => {
      const i = s.x.indexOf(best), ends = s.low && s.low[i] !== null ? ` [${s.low[i]}, ${s.high[i]}]` : "";
      return s.y[i] === null ? "" : `${s.name}  ${s.y[i]}${ends}`;
    }).filter(text => text);
    tip.textContent = [`${plot.x} ${best.toLocaleString("en")}`, ...lines].join("\n");
    tip.style.display = "block";
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 12) + "px";
  });
  svg.addEventListener("pointerleave", () => { tip.style.display = "none"; });
}
// A player with its controls under the video: the browser's own would hide the curves at the bottom of the frames.
for (const video of document.querySelectorAll("figure > video")) {
  video.removeAttribute("controls");
  const row = document.createElement("div"), button = document.createElement("button");
  const slider = Object.assign(document.createElement("input"), {type: "range", min: 0, max: 1, step: "any", value: 0});
  row.className = "player";
  slider.ariaLabel = "moment of the episode";
  row.append(button, slider);
  video.after(row);
  const label = () => { button.textContent = video.paused ? "Play" : "Pause"; };
  const toggle = () => { if (video.paused) video.play(); else video.pause(); };
  label();
  for (const name of ["play", "pause"]) video.addEventListener(name, label);
  for (const part of [video, button]) part.addEventListener("click", toggle);
  video.addEventListener("timeupdate", () => { slider.value = video.currentTime / video.duration || 0; });
  slider.addEventListener("input", () => { video.currentTime = slider.value * video.duration || 0; });
}
