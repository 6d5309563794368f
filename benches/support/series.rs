//! What a report's plots show.

use super::record::{median, Report, Row};

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

/// The size for bars: [`PREFERRED_SIZE`], or else the largest square.
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

/// The shape of a product: `NT 32 × 128×768×768`.
pub fn shape_of(row: &Row) -> String {
    let number = |value: Option<usize>| value.unwrap_or_default();
    let batch = match row.batch {
        Some(batch) if batch > 1 => format!("{batch} × "),
        _ => String::new(),
    };
    format!(
        "{} {batch}{}×{}×{}",
        row.layout.as_deref().unwrap_or_default(),
        number(row.m),
        number(row.n),
        number(row.k)
    )
}
