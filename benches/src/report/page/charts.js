// The pictures of the page, drawn from its results. No library: the page has to work from a file, without a network.
(function () {
  "use strict";
  var results = JSON.parse(document.getElementById("results").textContent);
  var colours = JSON.parse(document.getElementById("colours").textContent);

  // Numbers and texts, as the tables have them.
  function number(value) {
    if (!isFinite(value)) { return "-"; }
    var size = Math.abs(value), whole = size === Math.trunc(size) || size >= 99.95;
    var digits = whole ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }
  function quantity(value, unit) {
    var us = { ns: 1e-3, us: 1, ms: 1e3, s: 1e6 }[unit];
    if (!us) { return number(value) + (unit === "1/s" ? "/s" : unit && " " + unit); }
    var size = Math.abs(value * us);
    if (size === 0) { return "0"; }
    var scale = size < 0.9995 ? [1e3, "ns"] : size < 999.5 ? [1, "µs"] : size < 999500 ? [1e-3, "ms"] : [1e-6, "s"];
    return number(value * us * scale[0]) + " " + scale[1];
  }
  function round(text) { return text.replace(/\.0+(?=\D|$)/, "").replace(/(\.\d*?)0+(?=\D|$)/, "$1"); }
  function escape(text) {
    return String(text).replace(/[&<>"]/g, function (c) { return "&#" + c.charCodeAt(0) + ";"; });
  }
  function distinct(all) { return all.filter(function (one, at) { return all.indexOf(one) === at; }); }
  function first(subject) { return subject.split(" ")[0]; }

  function colour(backend) { return colours[first(backend)]; }

  // Pieces of SVG.
  function text(x, y, anchor, what, kind) {
    return '<text class="' + (kind || "tick") + '" x="' + x + '" y="' + y + '" text-anchor="' + anchor + '">' + escape(what) + "</text>";
  }
  function line(x1, y1, x2, y2, kind) {
    return '<line class="' + kind + '" x1="' + x1 + '" y1="' + y1 + '" x2="' + x2 + '" y2="' + y2 + '"/>';
  }
  function rect(x, y, width, height, kind, hint) {
    return '<rect class="' + kind + '" x="' + x + '" y="' + y + '" width="' + Math.max(width, 1) + '" height="' + height +
      '"><title>' + escape(hint) + "</title></rect>";
  }
  function group(name, inside) { return '<g class="' + name + '">' + inside + "</g>"; }
  function svg(width, height, label, inside) {
    return '<svg viewBox="0 0 ' + width + " " + height + '" role="img" aria-label="' + escape(label) + '">' + inside + "</svg>";
  }

  // Scales: the part of the axis at which a value is, and the values that are named.
  function linear(end) {
    var step = Math.pow(10, Math.floor(Math.log10(end / 2))), ticks = [];
    while (end / step > 5) { step *= end / step > 12 ? 5 : 2; }
    for (var at = 0; at <= end * 1.0001; at += step) { ticks.push(at); }
    return { at: function (value) { return Math.min(Math.max(value / end, 0), 1); }, ticks: ticks };
  }
  function logarithmic(from, to) {
    var ticks = [], step = Math.ceil((to - from) / 6);
    for (var power = from; power <= to; power += step) { ticks.push(Math.pow(10, power)); }
    function at(value) { return value > 0 ? Math.min(Math.max((Math.log10(value) - from) / (to - from), 0), 1) : 0; }
    return { at: at, ticks: ticks, isLogarithmic: true };
  }
  function decades(values) {
    var above = values.filter(function (value) { return value > 0; });
    if (!above.length) { return linear(1); }
    var from = Math.floor(Math.log10(Math.min.apply(null, above)) + 1e-9), to = Math.ceil(Math.log10(Math.max.apply(null, above)) - 1e-9);
    if (above.length < values.length) { from -= 1; }
    return logarithmic(from, Math.max(to, from + 1));
  }

  // Horizontal bars in named groups, all on one scale; a mark for each floor.
  function bars(label, unit, groups, end) {
    var all = [].concat.apply([], groups.map(function (group) { return group.bars; }));
    var values = all.concat(all).map(function (bar, at) { return at < all.length ? bar.value : bar.mark; }).filter(isFinite);
    values = values.filter(function (value) { return value !== null; });
    if (!values.length) { return null; }
    var most = Math.max.apply(null, values), least = Math.min.apply(null, values.filter(function (value) { return value > 0; }));
    var scale = end ? linear(Math.max(end, most)) : most / least > 25
      ? logarithmic(Math.floor(Math.log10(least / 2)), Math.ceil(Math.log10(most))) : linear(most > 0 ? most : 1);
    function widest(texts) { return Math.max.apply(null, texts.map(function (text) { return text.length; })) * 7; }
    var names = widest(groups.map(function (group) { return group.name; })) + widest(all.map(function (bar) { return bar.name; }));
    var left = Math.min(names + 20, 300), notes = all.map(function (bar) { return quantity(bar.value, unit) + bar.note; });
    var right = widest(notes) + 20, width = Math.max(450, left + right + 160), y = 8, inside = "";
    function x(value) { return left + scale.at(value) * (width - left - right); }
    groups.forEach(function (group_) {
      var drawn = text(0, y + 12, "start", group_.name, "name");
      group_.bars.forEach(function (bar, depth) {
        var value = quantity(bar.value, unit), stop = x(bar.value);
        drawn += text(left - 8, y + 12, "end", bar.name);
        drawn += rect(left, y, stop - left, 16, "bar d" + Math.min(depth, 2), [bar.name, value, bar.note].join(" ").trim());
        if (bar.mark !== null) {
          drawn += line(x(bar.mark), y - 1.5, x(bar.mark), y + 17.5, "halo") + line(x(bar.mark), y - 1.5, x(bar.mark), y + 17.5, "mark");
          stop = Math.max(stop, x(bar.mark));
        }
        drawn += text(stop + 8, y + 12, "start", value + (bar.note && "  " + bar.note), "value");
        y += 21;
      });
      inside += group(colour(group_.name), drawn);
      y += 9;
    });
    var grid = scale.ticks.map(function (tick) {
      return line(x(tick), 4, x(tick), y - 9, "grid") + text(x(tick), y + 8, "middle", round(quantity(tick, unit)));
    }).join("");
    return { svg: svg(width, y + 16, label, grid + inside), note: scale.isLogarithmic ? "logarithmic scale" : "" };
  }

  // Lines over a common x, named at their ends; a click on a name leaves the others pale.
  function curve(label, unit, xName, lines) {
    var points = [].concat.apply([], lines.map(function (line) { return line.points; }));
    if (!points.length) { return null; }
    var across = decades(points.map(function (p) { return p[0]; })), up = decades(points.map(function (p) { return p[1]; }));
    var names = Math.max.apply(null, lines.map(function (line) { return line.name.length; })) * 6.5;
    var width = 460 + names, bottom = Math.max(210, lines.length * 15 + 20), inside = "", ends = [];
    function x(value) { return 74 + across.at(value) * 358; }
    function y(value) { return bottom - up.at(value) * (bottom - 10); }
    up.ticks.forEach(function (tick) { inside += line(74, y(tick), 432, y(tick), "grid") + text(68, y(tick) + 4, "end", round(quantity(tick, unit))); });
    across.ticks.forEach(function (tick) { inside += line(x(tick), 10, x(tick), bottom, "grid") + text(x(tick), bottom + 16, "middle", number(tick)); });
    inside += text(253, bottom + 32, "middle", xName);
    lines.forEach(function (one) {
      var last = one.points[one.points.length - 1];
      var path = one.points.map(function (p) { return x(p[0]).toFixed(1) + "," + y(p[1]).toFixed(1); }).join(" ");
      var dots = one.points.map(function (p) {
        return '<circle class="point" r="3" cx="' + x(p[0]) + '" cy="' + y(p[1]) + '"><title>' +
          escape(one.name + ": " + quantity(p[1], unit) + " at " + number(p[0]) + " " + xName) + "</title></circle>";
      }).join("");
      ends.push({ one: one, y: y(last[1]), drawn: '<polyline class="line d' + one.dash + '" points="' + path + '"/>' + dots });
    });
    // Names that would cover each other stand one below the other.
    ends.sort(function (a, b) { return a.y - b.y; });
    var low = bottom - (ends.length - 1) * 14, from = 0;
    ends.forEach(function (end) { from = Math.max(from + 14, Math.min(end.y, low)); low += 14; end.at = from; });
    ends.forEach(function (end) {
      inside += group(colour(end.one.name) + " subject", end.drawn + text(442, end.at + 4, "start", end.one.name, "end"));
    });
    return { svg: svg(width, bottom + 40, label, inside), note: "logarithmic axes" };
  }

  // Upright bars one after the other, and level lines to compare them with.
  function steps(label, unit, all, levels) {
    var most = Math.max.apply(null, all.concat(levels).map(function (one) { return one.value; }).concat(0));
    if (!all.length || !(most > 0)) { return null; }
    var scale = linear(most * 1.1), each = 386 / all.length, inside = "", names = "";
    function y(value) { return 190 - scale.at(value) * 182; }
    scale.ticks.forEach(function (tick) { inside += line(56, y(tick), 442, y(tick), "grid") + text(50, y(tick) + 4, "end", round(quantity(tick, unit))); });
    all.forEach(function (step, at) {
      var middle = 56 + (at + 0.5) * each, hint = step.name + " " + quantity(step.value, unit);
      inside += group(colour(step.name), rect(middle - each * 0.3, y(step.value), each * 0.6, 190 - y(step.value), "bar d1", hint));
      names += text(middle, 206, "middle", step.name.split(" ").slice(1).join(" ") || step.name, "name") +
        text(middle, (y(step.value) + 190) / 2 + 4, "middle", quantity(step.value, unit), "value");
    });
    levels.forEach(function (level) {
      inside += group(colour(level.name), line(56, y(level.value), 442, y(level.value), "line d" + level.dash) +
        text(448, y(level.value) + 4, "start", level.name + " " + quantity(level.value, unit), "end"));
    });
    return { svg: svg(600, 216, label, inside + names), note: "" };
  }

  // What processes did over time: a lane for each.
  var KINDS = { valid: "holds, guard valid", invalid: "acts, guard lost", paused: "paused or cut off", outage: "nobody can acquire",
    overlap: "two act as holder" };
  function timeline(label, lanes) {
    var spans = [].concat.apply([], lanes.map(function (lane) { return lane.spans; }));
    var end = Math.max.apply(null, spans.map(function (span) { return span.until_ms; }).concat(0));
    if (!(end > 0)) { return null; }
    var left = Math.max.apply(null, lanes.map(function (lane) { return lane.name.length; })) * 7.5 + 14;
    var scale = linear(end), bottom = 8 + lanes.length * 30, inside = "", at = left;
    function x(ms) { return left + scale.at(ms) * (936 - left); }
    scale.ticks.forEach(function (tick) { inside += line(x(tick), 4, x(tick), bottom, "grid") + text(x(tick), bottom + 16, "middle", round(quantity(tick, "ms"))); });
    lanes.forEach(function (lane, row) {
      inside += text(0, 24 + row * 30, "start", lane.name, "name");
      // The overlaps last, so that nothing hides them.
      Object.keys(KINDS).forEach(function (kind) {
        lane.spans.filter(function (span) { return span.what === kind; }).forEach(function (span) {
          var from = x(span.from_ms), width = x(span.until_ms) - from;
          var hint = [KINDS[kind], span.note, quantity(span.from_ms, "ms"), "to", quantity(span.until_ms, "ms")].join(" ");
          inside += rect(from, 8 + row * 30, Math.max(width, 2), 22, "span " + kind, hint);
          if (span.note.length * 6.5 + 8 < width) { inside += text(from + 6, 24 + row * 30, "start", span.note, "note " + kind); }
        });
      });
    });
    Object.keys(KINDS).filter(function (kind) { return spans.some(function (span) { return span.what === kind; }); }).forEach(function (kind) {
      inside += rect(at, bottom + 28, 14, 12, "span " + kind, KINDS[kind]) + text(at + 20, bottom + 38, "start", KINDS[kind]);
      at += KINDS[kind].length * 6.5 + 36;
    });
    return { svg: svg(960, bottom + 52, label, inside), note: "", isWide: true };
  }

  function show(place, title, drawn, note) {
    if (!drawn) { return; }
    var notes = [drawn.note, note].filter(Boolean).join("; ");
    var figure = document.createElement("figure");
    if (drawn.isWide) { figure.className = "large"; }
    figure.innerHTML = "<figcaption>" + escape(title) + (notes && ' <span class="soft">(' + escape(notes) + ")</span>") + "</figcaption>" + drawn.svg;
    place.appendChild(figure);
  }

  // The pictures of a claim, from its figures.
  function draw(claim, picture) {
    var figures = claim.figures.filter(function (figure) { return figure.metric === picture.metric; });
    var unit = figures.length ? figures[0].unit : "", subjects = distinct(figures.map(function (figure) { return figure.subject; }));
    function of(subject) { return figures.filter(function (figure) { return figure.subject === subject; }); }
    function sisters(name, all) { return all.slice(0, all.indexOf(name)).filter(function (other) { return first(other) === first(name); }).length % 5; }
    function values(names) {
      return names.filter(function (name) { return of(name).length; }).map(function (name) {
        return { name: name, value: of(name)[0].value, dash: sisters(name, names) };
      });
    }
    switch (picture.kind) {
      case "bars": return bars(picture.title, unit, subjects.map(function (subject) {
        return { name: subject, bars: of(subject).map(function (figure) {
          return { name: figure.x === null ? "" : number(figure.x), value: figure.value, mark: null, note: "" };
        }) };
      }), picture.metric === "jain" ? 1 : 0);
      case "curve": return curve(picture.title, unit, picture.x, subjects.map(function (subject) {
        var points = of(subject).filter(function (figure) { return figure.x !== null; }).map(function (figure) { return [figure.x, figure.value]; });
        return { name: subject, dash: sisters(subject, subjects), points: points.sort(function (a, b) { return a[0] - b[0]; }) };
      }).filter(function (line) { return line.points.length; }));
      case "steps": return steps(picture.title, unit, values(picture.steps), values(picture.lines));
      default: return timeline(picture.title, picture.lanes);
    }
  }
  document.querySelectorAll("[data-claim]").forEach(function (place) {
    var claim = results.claims.find(function (claim) { return claim.id === Number(place.dataset.claim); });
    claim.pictures.forEach(function (picture) { show(place, picture.title, draw(claim, picture)); });
  });

  // Those of an experiment: a picture for each number, quantiles of one thing together.
  document.querySelectorAll("[data-scenario]").forEach(function (place) {
    var name = place.dataset.scenario, rows = results.rows.filter(function (row) { return row.scenario === name; });
    var described = (results.experiments.find(function (one) { return one.name === name; }) || { metrics: [] }).metrics;
    var known = described.map(function (metric) { return metric.name; });
    var metrics = distinct(known.concat(rows.map(function (row) { return row.metric; }))).filter(function (metric) {
      return metric !== "overlaps" && rows.some(function (row) { return row.metric === metric; });
    });
    var backends = distinct(rows.map(function (row) { return row.backend; }));
    // Many subjects make no chart; those of throughput are drawn as curves, in the claim.
    if (backends.length > 20) { return; }
    function row(backend, metric) {
      return rows.filter(function (row) { return row.backend === backend && row.metric === metric; }).pop();
    }
    function unit(metric) { return rows.find(function (row) { return row.metric === metric; }).unit; }
    function about(metric) {
      return described.find(function (one) { return one.name === metric; }) ||
        { title: metric.replace(/_/g, " "), meaning: "", floor_name: "floor", floor_meaning: "floor" };
    }
    function stem(metric) { return /^(.*_)?p\d+$/.test(metric) ? metric.replace(/_?p\d+$/, "") + " of " + unit(metric) : metric; }
    distinct(metrics.map(stem)).forEach(function (family) {
      var members = metrics.filter(function (metric) { return stem(metric) === family; }), one = about(members[0]);
      var isMarked = false, title = members.length > 1 ? one.title.replace(/ ?p\d+$/, "") || "latency" : one.title;
      var drawn = bars(name + ": " + title, unit(members[0]), backends.map(function (backend) {
        return { name: backend, bars: members.filter(function (metric) { return row(backend, metric); }).map(function (metric) {
          var found = row(backend, metric), ratio = found.ratio;
          isMarked = isMarked || found.floor !== null;
          return { name: members.length > 1 ? metric.split("_").pop() : "", value: found.value, mark: found.floor,
            note: ratio === null ? "" : ratio.toFixed(2) + "× " + about(metric).floor_name };
        }) };
      }).filter(function (group) { return group.bars.length; }), members[0] === "jain" ? 1 : 0);
      show(place, title, drawn, [isMarked && "the upright mark is the " + one.floor_meaning, one.meaning].filter(Boolean).join("; "));
    });
  });

  // A click on a picture makes it as wide as the page; one on the name of a line leaves the others pale.
  document.addEventListener("click", function (event) {
    var subject = event.target.closest(".subject"), figure = event.target.closest("figure");
    if (subject) {
      var was = subject.classList.contains("chosen");
      figure.querySelectorAll(".subject").forEach(function (other) { other.classList.remove("chosen"); });
      subject.classList.toggle("chosen", !was);
      figure.classList.toggle("has-chosen", !was);
    } else if (figure) {
      figure.classList.toggle("zoomed");
    }
  });
})();
