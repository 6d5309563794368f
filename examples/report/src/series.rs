//! The plots of a report, and what they show.

use crate::distribution::classes;
use crate::models;
use crate::plot;
use crate::record::{median, Report, Row};
use anyhow::Result;

/// The size at which kernels are compared in bars, where it was measured.
const PREFERRED_SIZE: usize = 4096;

fn squares(report: &Report) -> impl Iterator<Item = (&Row, usize)> {
    let layout = report
        .rows
        .iter()
        .find(|row| row.square().is_some())
        .and_then(|row| row.layout.clone());
    report
        .rows
        .iter()
        .filter(move |row| row.layout == layout && row.dtype.as_deref() != Some("f64"))
        .filter_map(|row| Some((row, row.square()?)))
}

/// GPU and storage order.
pub fn title(report: &Report) -> String {
    let layout = report
        .rows
        .first()
        .and_then(|row| row.layout.as_deref())
        .unwrap_or_default();
    format!("{}, FP32, {layout}", report.gpu)
}

/// One series a kernel over the sizes of squares, cuBLAS first, in TFLOP/s. A planner's choices are one series.
pub fn over_sizes(report: &Report) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    let mut baseline: Vec<(usize, Vec<f64>)> = Vec::new();
    for (row, size) in squares(report) {
        let name = match row.bench.as_str() {
            "sgemm" => "candle-sgemm".into(),
            _ => row.kernel.clone().unwrap_or_default(),
        };
        let point = (size as f64, row.tflops.unwrap_or_default());
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => series.push((name, vec![point])),
        }
        if let Some(us) = row.baseline_us {
            let tflops = 2.0 * (size as f64).powi(3) / us * 1e-6;
            match baseline.iter_mut().find(|(known, _)| *known == size) {
                Some((_, values)) => values.push(tflops),
                None => baseline.push((size, vec![tflops])),
            }
        }
    }
    if !baseline.is_empty() {
        let points = baseline.into_iter().map(|(size, values)| (size as f64, median(values)));
        series.insert(0, ("cuBLAS".into(), points.collect()));
    }
    for (_, points) in &mut series {
        points.sort_by(|x, y| x.0.total_cmp(&y.0));
    }
    series
}

/// The size for bars: 4096 where it was measured, or else the largest square.
pub fn bar_size(report: &Report) -> Option<usize> {
    let sizes: Vec<usize> = squares(report).map(|(_, size)| size).collect();
    match sizes.contains(&PREFERRED_SIZE) {
        true => Some(PREFERRED_SIZE),
        false => sizes.into_iter().max(),
    }
}

/// TFLOP/s of every kernel at one size, with the size.
pub fn at_one_size(report: &Report) -> Option<(usize, Vec<(String, f64)>)> {
    let size = bar_size(report)?;
    let at = |points: &[(f64, f64)]| points.iter().find(|point| point.0 == size as f64).map(|point| point.1);
    let bars: Vec<_> = over_sizes(report)
        .into_iter()
        .filter_map(|(name, points)| Some((name, at(&points)?)))
        .collect();
    (bars.len() > 1).then_some((size, bars))
}

/// The plots of a report on products of square matrices, with file names that begin with `name`.
///
/// # Errors
///
/// Of drawing.
pub fn product_plots(report: &Report, name: &str) -> Result<Vec<(String, String)>> {
    let mut plots = Vec::new();
    let title = title(report);
    let lines = over_sizes(report);
    if !lines.is_empty() {
        let svg = plot::lines(&title, "m = n = k", "TFLOP/s", &lines)?;
        plots.push((format!("{name}-sizes.svg"), svg));
    }
    if let Some((size, bars)) = at_one_size(report) {
        let peak = report.ffma_tflops.map(|peak| ("FFMA peak", peak));
        let svg = plot::bars(&format!("{title}, {size}³"), "TFLOP/s", &bars, peak)?;
        plots.push((format!("{name}-bars.svg"), svg));
    }
    Ok(plots)
}

/// The errors of products over the length of their sums: one plot for each distribution that was measured with several
/// lengths, with file names that begin with `name`.
///
/// # Errors
///
/// Of drawing.
pub fn accuracy_plots(report: &Report, name: &str) -> Result<Vec<(String, String)>> {
    let rows = || {
        let measured = report.rows.iter().filter(|row| row.bench == "accuracy");
        measured.filter(|row| row.layout.as_deref() == Some("NT"))
    };
    let mut distributions: Vec<&str> = Vec::new();
    for distribution in rows().filter_map(|row| row.distribution.as_deref()) {
        if !distributions.contains(&distribution) {
            distributions.push(distribution);
        }
    }
    let mut plots = Vec::new();
    for distribution in distributions {
        let of = |precision: &str, error: fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
            rows()
                .filter(|row| row.distribution.as_deref() == Some(distribution))
                .filter(|row| row.precision.as_deref() == Some(precision))
                .filter_map(|row| Some((row.k? as f64, 1e7 * error(row)?)))
                .collect()
        };
        let series = [
            ("cuBLAS".to_string(), of("fp32", |row| row.baseline_err_fro)),
            ("multiply-adds".to_string(), of("fp32-strict", |row| row.err_fro)),
            ("fp32".to_string(), of("fp32", |row| row.err_fro)),
        ];
        if !series.iter().any(|(_, points)| points.len() > 1) {
            continue;
        }
        let file: String = distribution
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '_' })
            .collect();
        let title = format!("{distribution}: ‖C − FP64‖ / ‖FP64‖");
        let svg = plot::lines(&title, "k", "units of 1e-7", &series)?;
        plots.push((format!("{name}-{file}.svg"), svg));
    }
    Ok(plots)
}

/// The ratios of drawn products: one plot of the share up to each ratio, by class and of all, with a file name that begins with
/// `name`.
///
/// # Errors
///
/// Of drawing.
pub fn random_plots(report: &Report, name: &str) -> Result<Vec<(String, String)>> {
    let rows: Vec<Row> = report
        .rows
        .iter()
        .filter(|row| row.bench == "random")
        .cloned()
        .collect();
    let Some(row) = rows.first() else {
        return Ok(Vec::new());
    };
    let ratios = |belongs: &dyn Fn(&&Row) -> bool| -> Vec<f64> {
        let rows = rows.iter().filter(belongs);
        rows.filter_map(|row| row.speedup).collect()
    };
    let mut series: Vec<(String, Vec<f64>)> = classes(&rows)
        .into_iter()
        .map(|class| (class.into(), ratios(&|row| row.class.as_deref() == Some(class))))
        .collect();
    series.push(("all".into(), ratios(&|_| true)));
    let precision = row.precision.as_deref().unwrap_or_default();
    let title = format!("{}, {} drawn products, {precision}", report.gpu, rows.len());
    let svg = plot::cumulative(&title, "cuBLAS's time / ours", &series)?;
    Ok(vec![(format!("{name}-ratios.svg"), svg)])
}

/// Every plot of a report, of whatever kind its rows are.
///
/// # Errors
///
/// Of drawing.
pub fn plots(report: &Report, name: &str) -> Result<Vec<(String, String)>> {
    if report.rows.iter().any(|row| row.bench == "random") {
        return random_plots(report, name);
    }
    let mut plots = product_plots(report, name)?;
    plots.extend(transpose_plots(report, name)?);
    plots.extend(layer_plots(report, name)?);
    plots.extend(accuracy_plots(report, name)?);
    plots.extend(models::model_plots(report, name)?);
    plots.extend(models::decode_plots(report, name)?);
    Ok(plots)
}

/// The matrix with which the steps of transposition are compared.
pub const TRANSPOSE_SIZE: [usize; 2] = [8192, 8192];

/// Squares of one element type, by kernel: GB/s over the size, the planner's choice by its own name too.
fn transpose_over_sizes(report: &Report, dtype: &str) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in &report.rows {
        let (Some([rows, cols]), Some(kernel)) = (row.shape.as_deref(), &row.kernel) else {
            continue;
        };
        if rows != cols || row.dtype.as_deref() != Some(dtype) {
            continue;
        }
        let point = (*rows as f64, row.gbps.unwrap_or_default());
        match series.iter_mut().find(|(name, _)| name == kernel) {
            Some((_, points)) => points.push(point),
            None => series.push((kernel.clone(), vec![point])),
        }
    }
    series
}

/// The plots of a report on transpositions, with file names that begin with `name`.
///
/// # Errors
///
/// Of drawing.
pub fn transpose_plots(report: &Report, name: &str) -> Result<Vec<(String, String)>> {
    let [size, _] = TRANSPOSE_SIZE;
    let mut plots = Vec::new();
    for dtype in ["f32", "f64", "bf16", "u8"] {
        let lines = transpose_over_sizes(report, dtype);
        if !lines.iter().any(|(_, points)| points.len() > 1) {
            continue;
        }
        let title = format!("{}, transposition, {dtype}", report.gpu);
        let svg = plot::lines(&title, "rows = columns", "GB/s, read and written", &lines)?;
        plots.push((format!("{name}-{dtype}-sizes.svg"), svg));
        let bars: Vec<(String, f64)> = lines
            .iter()
            .filter_map(|(kernel, points)| {
                let point = points.iter().find(|point| point.0 == size as f64)?;
                Some((kernel.clone(), point.1))
            })
            .collect();
        if bars.len() > 1 {
            let svg = plot::bars(&format!("{title}, {size}²"), "GB/s", &bars, None)?;
            plots.push((format!("{name}-{dtype}-bars.svg"), svg));
        }
    }
    Ok(plots)
}

/// The speed-ups of layers and networks over stock candle: bars, one plot a precision, with file names that begin with
/// `name`.
///
/// # Errors
///
/// Of drawing.
pub fn layer_plots(report: &Report, name: &str) -> Result<Vec<(String, String)>> {
    let mut precisions: Vec<&str> = Vec::new();
    for precision in report.rows.iter().filter_map(|row| row.precision.as_deref()) {
        if !precisions.contains(&precision) {
            precisions.push(precision);
        }
    }
    let mut plots = Vec::new();
    for precision in precisions {
        let bars: Vec<(String, f64)> = report
            .rows
            .iter()
            .filter(|row| matches!(row.bench.as_str(), "linear" | "mlp"))
            .filter(|row| row.precision.as_deref() == Some(precision) && row.kernel.as_deref() == Some("fused"))
            .filter_map(|row| Some((row.layer.clone()?, row.speedup?)))
            .collect();
        if !bars.is_empty() {
            let title = format!("{}, fused layers, {precision}: times as fast as candle", report.gpu);
            let svg = plot::bars(&title, "×", &bars, None)?;
            plots.push((format!("{name}-{precision}.svg"), svg));
        }
    }
    Ok(plots)
}
