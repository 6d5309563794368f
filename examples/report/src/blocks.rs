//! The generated blocks. A document has `<!-- generated: KIND -->` and `<!-- end of generated -->`, each on its own
//! line; what lies between them is written from the reports that have rows of that kind.

use crate::distribution::{distributions, plan_of, prediction_error, remarks_of, worst, GOOD, SLOWER, WORST};
use crate::models;
use crate::record::{geometric_mean, preparations, shape_of, Report, Row};
use crate::series;
use anyhow::{bail, Result};
use std::collections::BTreeMap;
use std::fmt::Write;

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end of generated -->";
const KINDS: [&str; 18] = [
    HIGHLIGHTS,
    SLOWER_PRODUCTS,
    "ladder",
    LADDER_RUNGS,
    "sgemm",
    "random",
    "sustained",
    "transpose",
    TRANSPOSE_STEPS,
    "linear",
    "mlp",
    "graph",
    "model",
    MODELS,
    "decode",
    "tests",
    "accuracy",
    "activation",
];

/// The steps of transposition by themselves, from rows of the kind "transpose".
const TRANSPOSE_STEPS: &str = "transpose-steps";

/// The fastest kernel of every rung, from rows of the kind "ladder".
const LADDER_RUNGS: &str = "ladder-rungs";

/// Many models in several ways, from rows of the kind "model" that name one; those that name none are of one model in several
/// settings.
const MODELS: &str = "models";

/// The products that take longer than the baseline's, from rows of the kind "sgemm".
const SLOWER_PRODUCTS: &str = "slower-products";

/// A few figures of several kinds, for the first page.
const HIGHLIGHTS: &str = "highlights";

/// A report and its name, which its plots begin with: the folder of its GPU and its file, `h200-layers`.
type Named = (String, Report);

/// The GPUs of the reports: the one of which there are most first, and of those with as many the one that was measured last.
fn gpus(reports: &[Named]) -> Vec<&str> {
    let mut known: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (_, report) in reports {
        let (count, date) = known.entry(&report.gpu).or_default();
        *count += 1;
        *date = (*date).max(report.date.as_str());
    }
    let mut gpus: Vec<&str> = known.keys().copied().collect();
    gpus.sort_by_key(|gpu| std::cmp::Reverse(known[gpu]));
    gpus
}

/// What `write` has to say of each GPU: that of the first one openly, that of the others folded away.
fn by_gpu(reports: &[Named], write: impl Fn(&mut String, &[&Named])) -> String {
    let mut text = String::from("\n");
    let mut first = true;
    for gpu in gpus(reports) {
        let of_gpu: Vec<&Named> = reports.iter().filter(|(_, report)| report.gpu == gpu).collect();
        let mut part = String::new();
        write(&mut part, &of_gpu);
        if part.is_empty() {
            continue;
        }
        match std::mem::replace(&mut first, false) {
            true => text += &part,
            false => {
                let _ = writeln!(text, "<details><summary>{gpu}</summary>\n\n{part}</details>\n");
            }
        }
    }
    if first {
        text += "No results are committed yet.\n\n";
    }
    text
}

/// The part of a report with rows of one kind, or `None` if it has none.
fn of_kind(report: &Report, kind: &str) -> Option<Report> {
    let is_of_kind = |row: &&Row| match kind {
        MODELS => models::is_of_models(row),
        _ => row.bench == kind && !models::is_of_models(row),
    };
    let rows: Vec<Row> = report.rows.iter().filter(is_of_kind).cloned().collect();
    (!rows.is_empty()).then(|| Report { rows, ..report.clone() })
}

/// `text` with its generated blocks filled.
///
/// # Errors
///
/// If a block has no end, or is of a kind that does not exist.
pub fn fill(text: &str, reports: &[Named], plots: &str) -> Result<String> {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out += line;
        out.push('\n');
        let Some(kind) = line
            .trim()
            .strip_prefix(BEGIN)
            .and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        if !KINDS.contains(&kind) {
            bail!(
                "there is no generated block '{kind}': the kinds are {}",
                KINDS.join(", ")
            );
        }
        if !lines.by_ref().any(|line| line.trim() == END) {
            bail!("the generated block '{kind}' has no line '{END}'");
        }
        out += &block(kind, reports, plots);
        out += END;
        out.push('\n');
    }
    Ok(out)
}

fn block(kind: &str, reports: &[Named], plots: &str) -> String {
    match kind {
        HIGHLIGHTS => return by_gpu(reports, highlights),
        SLOWER_PRODUCTS => return by_gpu(reports, slower_products),
        _ => {}
    }
    let rows = match kind {
        TRANSPOSE_STEPS => "transpose",
        LADDER_RUNGS => "ladder",
        _ => kind,
    };
    by_gpu(reports, |text, reports| {
        for (name, report) in reports {
            if let Some(report) = of_kind(report, rows) {
                tables(text, kind, name, &report, plots);
            }
        }
    })
}

/// Where and how a report was measured, then its rows, all of one kind.
fn tables(text: &mut String, kind: &str, name: &str, report: &Report, plots: &str) {
    let _ = writeln!(
        text,
        "{}, driver {}, CUDA {}, cuBLAS {}{}, {}: `{}`\n",
        report.gpu,
        report.driver,
        report.cuda,
        report.cublas,
        match report.sm_clock_mhz {
            0.0 => String::new(), // not a matter of speed
            clock => format!(", {clock} MHz"),
        },
        report.date.split('T').next().unwrap_or_default(),
        report.command
    );
    match kind {
        "ladder" => ladder(text, name, report, plots),
        LADDER_RUNGS => ladder_rungs(text, name, report, plots),
        "sustained" => sustained(text, report),
        "random" => random(text, name, report, plots),
        "transpose" => transpose(text, name, report, plots),
        "linear" | "mlp" | "graph" => layers(text, name, kind, report, plots),
        TRANSPOSE_STEPS => transpose_steps(text, report),
        MODELS => models::models(text, name, report, plots),
        "decode" => models::decode(text, name, report, plots),
        _ => {
            summary(text, report);
            *text += &table(&report.rows, &COLUMNS);
            text.push('\n');
        }
    }
}

/// Every plot that the blocks show, by file name.
pub fn plots(reports: &[Named]) -> Result<Vec<(String, String)>> {
    let mut plots = Vec::new();
    for (name, report) in reports {
        if let Some(report) = of_kind(report, "transpose") {
            plots.extend(series::transpose_plots(&report, name)?);
        }
        if let Some(report) = of_kind(report, "random") {
            plots.extend(series::random_plots(&report, name)?);
        }
        if of_kind(report, "linear").is_some() {
            plots.extend(series::layer_plots(report, name)?);
        }
        plots.extend(models::model_plots(report, name)?);
        plots.extend(models::decode_plots(report, name)?);
        let Some(report) = of_kind(report, "ladder") else {
            continue;
        };
        plots.extend(series::product_plots(&report, name)?);
    }
    Ok(plots)
}

fn ladder(text: &mut String, name: &str, report: &Report, plots: &str) {
    if let Some(size) = series::bar_size(report) {
        let peak = report.ffma_tflops;
        let rows: Vec<Row> = report
            .rows
            .iter()
            .filter(|row| row.square() == Some(size))
            .cloned()
            .collect();
        let of_peak = move |row: &Row| match row.dtype.as_deref() {
            Some("f64") => None,
            _ => Some(format!("{:.1}", 100.0 * row.tflops? / peak?)),
        };
        let columns: [Column; 9] = [
            ("rung", &|row| row.rung.map(|rung| rung.to_string())),
            ("kernel", &|row| row.kernel.as_ref().map(|kernel| format!("`{kernel}`"))),
            ("µs", &|row| row.us.map(|us| format!("{us:.1}"))),
            ("TFLOP/s", &|row| row.tflops.map(|tflops| format!("{tflops:.2}"))),
            ("% of cuBLAS", &|row| {
                row.speedup.map(|speedup| format!("{:.1}", 100.0 * speedup))
            }),
            ("% of FFMA peak", &of_peak),
            ("registers", &|row| row.registers.map(|registers| registers.to_string())),
            ("shared bytes", &|row| row.shared_bytes.map(|bytes| bytes.to_string())),
            ("occupancy %", &|row| {
                row.occupancy.map(|share| format!("{:.0}", 100.0 * share))
            }),
        ];
        let _ = writeln!(text, "{size}³:\n\n{}", table(&rows, &columns));
        for (kernel, note) in preparations(&rows) {
            let _ = writeln!(text, "`{kernel}`: {note}.\n");
        }
        let _ = writeln!(text, "![TFLOP/s at {size}³]({plots}/{name}-bars.svg)\n");
    }
    let lines = series::over_sizes(report);
    let mut sizes: Vec<usize> = report.rows.iter().filter_map(Row::square).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() > 1 {
        let head = sizes.iter().map(|size| format!("{size}³")).collect::<Vec<_>>();
        let _ = writeln!(
            text,
            "| TFLOP/s | {} |\n|---|{}",
            head.join(" | "),
            "---:|".repeat(sizes.len())
        );
        for (kernel, points) in &lines {
            let cells: Vec<String> = sizes
                .iter()
                .map(|&size| points.iter().find(|point| point.0 == size as f64))
                .map(|point| point.map_or(String::new(), |point| format!("{:.2}", point.1)))
                .collect();
            let _ = writeln!(text, "| {kernel} | {} |", cells.join(" | "));
        }
        text.push('\n');
    }
    if !lines.is_empty() {
        let _ = writeln!(text, "![TFLOP/s over sizes]({plots}/{name}-sizes.svg)\n");
    }
}

/// The fastest single-precision kernel of every rung at one size.
fn ladder_rungs(text: &mut String, name: &str, report: &Report, plots: &str) {
    let Some(size) = series::bar_size(report) else {
        return;
    };
    let mut fastest: BTreeMap<u32, &Row> = BTreeMap::new();
    let rows = report.rows.iter().filter(|row| row.square() == Some(size));
    for row in rows.filter(|row| row.dtype.as_deref() != Some("f64")) {
        if let Some(rung) = row.rung {
            let best = fastest.entry(rung).or_insert(row);
            if row.tflops > best.tflops {
                *best = row;
            }
        }
    }
    let rows: Vec<Row> = fastest.into_values().cloned().collect();
    let columns: [Column; 5] = [
        ("rung", &|row| row.rung.map(|rung| rung.to_string())),
        ("its fastest kernel", &|row| {
            row.kernel.as_ref().map(|kernel| format!("`{kernel}`"))
        }),
        ("µs", &|row| row.us.map(|us| format!("{us:.1}"))),
        ("TFLOP/s", &|row| row.tflops.map(|tflops| format!("{tflops:.2}"))),
        ("% of cuBLAS", &|row| {
            row.speedup.map(|speedup| format!("{:.1}", 100.0 * speedup))
        }),
    ];
    let _ = writeln!(text, "{size}³:\n\n{}", table(&rows, &columns));
    let _ = writeln!(text, "![TFLOP/s over sizes]({plots}/{name}-sizes.svg)\n");
}

/// A line for each run over the grid, then all products in which the baseline is faster, those that lose most first.
fn slower_products(text: &mut String, reports: &[&Named]) {
    const COLUMNS: [Column; 7] = [SHAPE, TYPE, PRECISION, KERNEL, US, BASELINE_US, RATIO];
    let runs: Vec<Report> = reports
        .iter()
        .filter_map(|(_, report)| of_kind(report, "sgemm"))
        .collect();
    let Some(first) = runs.first() else {
        return;
    };
    let _ = writeln!(
        text,
        "{}:\n\n| type | precision | products | slower than the baseline | least ratio |\n|---|---|---:|---:|---:|",
        first.gpu
    );
    let mut slower: Vec<Row> = Vec::new();
    for run in &runs {
        let ratios: Vec<f64> = run.rows.iter().filter_map(|row| row.speedup).collect();
        let behind = run
            .rows
            .iter()
            .filter(|row| row.speedup.is_some_and(|ratio| ratio < 1.0));
        let before = slower.len();
        slower.extend(behind.cloned());
        let row = &run.rows[0];
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.3} |",
            (TYPE.1)(row).unwrap_or_default(),
            (PRECISION.1)(row).unwrap_or_default(),
            ratios.len(),
            slower.len() - before,
            ratios.iter().copied().fold(f64::INFINITY, f64::min),
        );
    }
    text.push('\n');
    slower.sort_by(|x, y| x.speedup.partial_cmp(&y.speedup).unwrap_or(std::cmp::Ordering::Equal));
    if !slower.is_empty() {
        *text += &table(&slower, &COLUMNS);
        text.push('\n');
    }
}

/// A table with a column a precision: products beside cuBLAS, a layer and networks beside candle; then transposition.
fn highlights(text: &mut String, reports: &[&Named]) {
    const PRECISIONS: [&str; 2] = ["fp32-strict", "fp32"];
    const SQUARE: usize = 4096;
    const LAYERS: [(&str, &str); 3] = [
        ("linear", "linear + GELU 4096×768→3072"),
        ("mlp", "MLP 784-512-512-10, batch 64"),
        ("model", "bert 32×128, fused"),
    ];
    // Precision is about FP32 factors: rows of 16 bits are in tables of their own.
    let rows = |kind: &'static str| {
        let rows = reports.iter().flat_map(|(_, report)| &report.rows);
        rows.filter(move |row| row.bench == kind && row.dtype.as_deref().is_none_or(|dtype| dtype == "f32"))
    };
    let mut lines: Vec<(String, [Option<String>; 2])> = Vec::new();
    lines.push((
        "products of the grid: cuBLAS's time ÷ ours, geometric mean (worst)".into(),
        PRECISIONS.map(|precision| {
            let rows = rows("sgemm").filter(|row| row.precision.as_deref() == Some(precision));
            let ratios: Vec<f64> = rows.filter_map(|row| row.speedup).collect();
            let worst = ratios.iter().copied().reduce(f64::min)?;
            Some(format!("{:.2} ({worst:.2})", geometric_mean(&ratios)))
        }),
    ));
    lines.push((
        format!("{SQUARE}³ NN, sustained, TFLOP/s (cuBLAS)"),
        PRECISIONS.map(|precision| {
            let mut rows = rows("sustained").filter(|row| row.precision.as_deref() == Some(precision));
            let row = rows.find(|row| {
                row.square() == Some(SQUARE)
                    && row.layout.as_deref() == Some("NN")
                    && row.pace.as_deref() == Some("sustained")
            })?;
            let tflops = row.tflops?;
            Some(format!("{tflops:.1} ({:.1})", tflops / row.speedup?))
        }),
    ));
    for (kind, layer) in LAYERS {
        lines.push((
            format!("{layer}, µs (stock candle)"),
            PRECISIONS.map(|precision| {
                let mut rows = rows(kind).filter(|row| row.precision.as_deref() == Some(precision));
                // Layers and networks have a row unfused, too; models say in their name what they are.
                let row = rows.find(|row| {
                    row.layer.as_deref() == Some(layer) && matches!(row.kernel.as_deref(), Some("fused") | None)
                })?;
                Some(format!("{:.0} ({:.0})", row.us?, row.baseline_us?))
            }),
        ));
    }
    lines.retain(|(_, cells)| cells.iter().any(Option::is_some));
    let Some((_, report)) = reports.first().filter(|_| !lines.is_empty()) else {
        return;
    };
    let _ = writeln!(text, "{}:\n", report.gpu);
    let _ = writeln!(text, "| | `{}` | `{}` |\n|---|---:|---:|", PRECISIONS[0], PRECISIONS[1]);
    for (what, cells) in lines {
        let cells = cells.map(|cell| cell.unwrap_or_default());
        let _ = writeln!(text, "| {what} | {} |", cells.join(" | "));
    }
    text.push('\n');
    let [size, _] = series::TRANSPOSE_SIZE;
    let transposed = rows("transpose").find(|row| {
        row.chosen == Some(true)
            && row.dtype.as_deref() == Some("f32")
            && row.shape.as_deref() == Some(&series::TRANSPOSE_SIZE)
    });
    if let Some(share) = transposed.and_then(|row| row.speedup) {
        let _ = writeln!(
            text,
            "Transposition of {size}² numbers: {:.1} % of the speed of a copy.\n",
            100.0 * share
        );
    }
}

/// A table a precision: sizes down, layouts across, the speed of launches back to back and that after a pause, cuBLAS's in
/// brackets.
fn sustained(text: &mut String, report: &Report) {
    let mut precisions: Vec<&str> = Vec::new();
    let mut layouts: Vec<&str> = Vec::new();
    let mut sizes: Vec<usize> = report.rows.iter().filter_map(Row::square).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for row in &report.rows {
        for (names, name) in [(&mut precisions, &row.precision), (&mut layouts, &row.layout)] {
            if let Some(name) = name.as_deref().filter(|name| !names.contains(name)) {
                names.push(name);
            }
        }
    }
    for precision in precisions {
        let _ = writeln!(
            text,
            "{precision}, TFLOP/s, sustained / after a pause (cuBLAS):\n\n| | {} |\n|---|{}",
            layouts.join(" | "),
            "---|".repeat(layouts.len())
        );
        for &size in &sizes {
            let cells = layouts.iter().map(|layout| {
                let speeds = |of: fn(&Row) -> Option<f64>| {
                    let of_pace = |pace: &str| {
                        let mut rows = report.rows.iter();
                        let row = rows.find(|row| {
                            row.square() == Some(size)
                                && row.precision.as_deref() == Some(precision)
                                && row.layout.as_deref() == Some(layout)
                                && row.pace.as_deref() == Some(pace)
                        })?;
                        Some(format!("{:.1}", of(row)?))
                    };
                    let pair = [of_pace("sustained"), of_pace("after a pause")];
                    pair.map(|speed| speed.unwrap_or("-".into())).join(" / ")
                };
                let baseline = |row: &Row| Some(row.tflops? / row.speedup?);
                format!("{} ({})", speeds(|row| row.tflops), speeds(baseline))
            });
            let cells: Vec<String> = cells.collect();
            let _ = writeln!(text, "| {size}³ | {} |", cells.join(" | "));
        }
        text.push('\n');
    }
}

/// How the ratios of drawn products are spread, the plot of that, and the worst folded away.
fn random(text: &mut String, name: &str, report: &Report, plots: &str) {
    let precision = report.rows.first().and_then(|row| row.precision.as_deref());
    let _ = writeln!(
        text,
        "{}, cuBLAS's time / ours:\n\n| | products | geometric mean | median | 5 % below | worst | under {SLOWER} | predicted within {:.0} % |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|",
        precision.unwrap_or_default(),
        100.0 * GOOD
    );
    for of in distributions(&report.rows) {
        let predicted = of
            .predicted
            .map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
        let _ = writeln!(
            text,
            "| {} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.1} % | {predicted} |",
            of.name,
            of.count,
            of.mean,
            of.median,
            of.twentieth,
            of.worst,
            100.0 * of.slower,
        );
    }
    let _ = writeln!(
        text,
        "\n![The share of the products up to each ratio]({plots}/{name}-ratios.svg)\n"
    );
    let rows: Vec<Row> = worst(&report.rows, WORST).into_iter().cloned().collect();
    let columns: [Column; 8] = [
        ("class", &|row| row.class.clone()),
        ("shape", &|row| Some(shape_of(row))),
        ("operands", &|row| Some(remarks_of(row))),
        ("plan", &|row| Some(plan_of(row))),
        ("µs", &|row| row.us.map(|us| format!("{us:.2}"))),
        ("predicted µs", &|row| {
            let error = prediction_error(row)?;
            Some(format!("{:.2} ({:+.0} %)", row.predicted_us?, 100.0 * error))
        }),
        ("baseline µs", &|row| row.baseline_us.map(|us| format!("{us:.2}"))),
        ("baseline / ours", &|row| {
            row.speedup.map(|speedup| format!("{speedup:.3}"))
        }),
    ];
    let _ = writeln!(
        text,
        "<details><summary>The worst {}</summary>\n\n{}\n</details>\n",
        rows.len(),
        table(&rows, &columns)
    );
}

/// What the planner chooses beside the baselines, then the plots.
fn transpose(text: &mut String, name: &str, report: &Report, plots: &str) {
    let case = |row: &Row| (row.dtype.clone(), row.shape.clone(), row.axes.clone());
    let of_copy = |row: Option<&Row>| {
        row.and_then(|row| row.speedup)
            .map_or("".into(), |share| format!("{share:.3}"))
    };
    let _ = writeln!(
        text,
        "| type | shape | order | chosen | GB/s | copy GB/s | of copy | geam | candle |\n|---|---|---|---|---:|---:|---:|---:|---:|"
    );
    for row in report.rows.iter().filter(|row| row.chosen == Some(true)) {
        let beside = |kernel: &str| {
            let same = report.rows.iter().filter(|other| case(other) == case(row));
            same.into_iter().find(|other| other.kernel.as_deref() == Some(kernel))
        };
        let copy = beside("device-to-device copy")
            .and_then(|row| row.gbps)
            .unwrap_or_default();
        // A view that candle need not move takes it no time at all.
        let candle = beside("candle contiguous()").filter(|row| row.speedup.is_some_and(|share| share < 10.0));
        let _ = writeln!(
            text,
            "| {} | {} | {} | `{}` | {:.0} | {copy:.0} | {} | {} | {} |",
            row.dtype.as_deref().unwrap_or_default(),
            join(row.shape.as_deref().unwrap_or_default(), "×"),
            join(row.axes.as_deref().unwrap_or_default(), ", "),
            row.kernel.as_deref().unwrap_or_default(),
            row.gbps.unwrap_or_default(),
            of_copy(Some(row)),
            of_copy(beside("cuBLAS geam")),
            of_copy(candle),
        );
    }
    let [size, _] = series::TRANSPOSE_SIZE;
    let _ = writeln!(text, "\n![GB/s at {size}²]({plots}/{name}-f32-bars.svg)\n");
    let _ = writeln!(text, "![GB/s over sizes]({plots}/{name}-f32-sizes.svg)\n");
}

/// GB/s of every step, at a size that the L2 holds and at one that it does not.
fn transpose_steps(text: &mut String, report: &Report) {
    const IN_L2: [usize; 2] = [1024, 1024];
    let sizes = [series::TRANSPOSE_SIZE, IN_L2];
    let mut columns: Vec<([usize; 2], &str)> = Vec::new();
    let mut kernels: Vec<&str> = Vec::new();
    for size in sizes {
        for row in report.rows.iter().filter(|row| row.shape.as_deref() == Some(&size)) {
            let (Some(dtype), Some(kernel)) = (row.dtype.as_deref(), row.kernel.as_deref()) else {
                continue;
            };
            if !columns.contains(&(size, dtype)) {
                columns.push((size, dtype));
            }
            if !kernels.contains(&kernel) {
                kernels.push(kernel);
            }
        }
    }
    let heads: Vec<String> = columns
        .iter()
        .map(|([size, _], dtype)| format!("{dtype} {size}²"))
        .collect();
    let _ = writeln!(
        text,
        "| GB/s | {} |\n|---|{}",
        heads.join(" | "),
        "---:|".repeat(heads.len())
    );
    for kernel in kernels {
        let cells: Vec<String> = columns
            .iter()
            .map(|(size, dtype)| {
                let mut rows = report.rows.iter().filter(|row| row.shape.as_deref() == Some(size));
                let row =
                    rows.find(|row| row.kernel.as_deref() == Some(kernel) && row.dtype.as_deref() == Some(*dtype));
                row.and_then(|row| row.gbps)
                    .map_or(String::new(), |gbps| format!("{gbps:.0}"))
            })
            .collect();
        let _ = writeln!(text, "| {kernel} | {} |", cells.join(" | "));
    }
    text.push('\n');
}

/// A line a layer and precision: stock candle, this crate's product alone in place of candle's, and everything in one kernel; and where it was measured
/// the product by itself.
fn layers(text: &mut String, name: &str, kind: &str, report: &Report, plots: &str) {
    let is = |row: &Row, kernel: &str| row.kernel.as_deref() == Some(kernel);
    let fused = || report.rows.iter().filter(|row| is(row, "fused"));
    let beside = |fused: &Row, kernel: &str| {
        let mut rows = report.rows.iter();
        let row = rows.find(|row| is(row, kernel) && row.layer == fused.layer && row.precision == fused.precision);
        row.and_then(|row| row.us)
    };
    let products = fused().any(|fused| beside(fused, "product").is_some());
    let [head, line] = if products { [" product µs |", "---:|"] } else { [""; 2] };
    let _ = writeln!(
        text,
        "| layer | precision | candle µs | unfused µs | fused µs |{head} candle / fused |\n|---|---|---:|---:|---:|{line}---:|"
    );
    for fused in fused() {
        let us = |us: Option<f64>| us.map_or(String::new(), |us| format!("{us:.1}"));
        let product = if products {
            format!(" {} |", us(beside(fused, "product")))
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |{product} {:.2} |",
            fused.layer.as_deref().unwrap_or_default(),
            fused.precision.as_deref().unwrap_or_default(),
            us(fused.baseline_us),
            us(beside(fused, "unfused")),
            us(fused.us),
            fused.speedup.unwrap_or_default(),
        );
    }
    text.push('\n');
    if kind == "linear" {
        // Of FP32 the default precision, else what there is.
        let arithmetics = || report.rows.iter().filter_map(|row| row.precision.as_deref());
        if let Some(arithmetic) = arithmetics()
            .find(|&name| name == "fp32")
            .or_else(|| arithmetics().next())
        {
            let _ = writeln!(text, "![Times as fast as candle]({plots}/{name}-{arithmetic}.svg)\n");
        }
    }
}

/// How many, the mean and the worst, where speeds are compared.
fn summary(text: &mut String, report: &Report) {
    let ratios: Vec<f64> = report.rows.iter().filter_map(|row| row.speedup).collect();
    let worst = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    if ratios.len() > 1 {
        let mean = geometric_mean(&ratios);
        let _ = writeln!(
            text,
            "{} measurements, geometric mean of the ratios {mean:.3}, worst {worst:.3}.\n",
            ratios.len()
        );
    }
}

/// A heading and the cell of a row, `None` where the row has no such thing.
type Column<'a> = (&'a str, &'a dyn Fn(&Row) -> Option<String>);

const SHAPE: Column = ("shape", &|row| match row.m {
    Some(_) => Some(shape_of(row)),
    None => row.shape.as_deref().map(|shape| join(shape, "×")),
});
const TYPE: Column = ("type", &|row| row.dtype.clone());
/// Products of 16 bits are the same at every precision.
const PRECISION: Column = ("precision", &|row| match row.dtype.as_deref() {
    Some("f16" | "bf16") => None,
    _ => row.precision.clone(),
});
const KERNEL: Column = ("kernel", &|row| row.kernel.as_ref().map(|kernel| format!("`{kernel}`")));
const US: Column = ("µs", &|row| row.us.map(|us| format!("{us:.2}")));
const BASELINE_US: Column = ("baseline µs", &|row| {
    let baseline = row.baseline.as_deref().unwrap_or_default();
    row.baseline_us.map(|us| format!("{us:.2} ({baseline})"))
});
const RATIO: Column = ("baseline / ours", &|row| {
    row.speedup.map(|speedup| format!("{speedup:.3}"))
});

/// The columns of every kind but the ladder; a column that no row has is left out.
const COLUMNS: [Column; 23] = [
    ("layer", &|row| row.layer.clone()),
    SHAPE,
    ("axes", &|row| row.axes.as_deref().map(|axes| join(axes, ", "))),
    ("rows", &|row| row.rows.map(|rows| rows.to_string())),
    ("in", &|row| row.inputs.map(|inputs| inputs.to_string())),
    ("out", &|row| row.outputs.map(|outputs| outputs.to_string())),
    ("activation", &|row| row.activation.clone()),
    ("distribution", &|row| row.distribution.clone()),
    TYPE,
    PRECISION,
    KERNEL,
    US,
    ("TFLOP/s", &|row| row.tflops.map(|tflops| format!("{tflops:.2}"))),
    ("GB/s", &|row| row.gbps.map(|gbps| format!("{gbps:.0}"))),
    BASELINE_US,
    RATIO,
    ("error", &|row| row.err_fro.map(|error| format!("{error:.2e}"))),
    ("worst error", &|row| row.err_max.map(|error| format!("{error:.2e}"))),
    ("passed", &|row| row.passed.map(|passed| passed.to_string())),
    ("failed", &|row| row.failed.map(|failed| failed.to_string())),
    ("products", &|row| row.products.map(|products| products.to_string())),
    ("taken over", &|row| row.taken_over.map(|taken| taken.to_string())),
    ("baseline error", &|row| {
        let error = row.baseline_err_fro?;
        Some(match row.baseline_err_max {
            Some(worst) => format!("{error:.2e} (worst {worst:.2e})"),
            None => format!("{error:.2e}"),
        })
    }),
];

fn join(numbers: &[usize], between: &str) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(between)
}

fn table(rows: &[Row], columns: &[Column]) -> String {
    let used: Vec<&Column> = columns
        .iter()
        .filter(|(_, cell)| rows.iter().any(|row| cell(row).is_some()))
        .collect();
    let headings: Vec<&str> = used.iter().map(|(heading, _)| *heading).collect();
    let mut text = format!("| {} |\n|{}\n", headings.join(" | "), "---|".repeat(used.len()));
    for row in rows {
        let cells: Vec<String> = used.iter().map(|(_, cell)| cell(row).unwrap_or_default()).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}
