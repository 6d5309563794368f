//! How the ratios of many products are spread, of each class and of all.

use super::record::{geometric_mean, Row};

/// A product is slower than the baseline from here on down.
pub const SLOWER: f64 = 0.97;
/// A prediction is good if it is off by no more than this share of the time.
pub const GOOD: f64 = 0.15;
/// How many of the worst are shown.
pub const WORST: usize = 20;

/// What is said of some products.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    pub name: String,
    pub count: usize,
    /// Geometric mean of the baseline's time / ours.
    pub mean: f64,
    /// The ratio that one in twenty is below.
    pub twentieth: f64,
    pub median: f64,
    pub worst: f64,
    /// The share of ratios under [`SLOWER`].
    pub slower: f64,
    /// The share of predictions within [`GOOD`] of the time, where times were predicted.
    pub predicted: Option<f64>,
}

/// What the prediction was off by, as a share of the time: above 0 where more was expected.
pub fn prediction_error(row: &Row) -> Option<f64> {
    Some(row.predicted_us? / row.us? - 1.0)
}

fn distribution(name: &str, rows: &[&Row]) -> Option<Distribution> {
    let mut ratios: Vec<f64> = rows.iter().filter_map(|row| row.speedup).collect();
    ratios.sort_by(f64::total_cmp);
    let count = ratios.len();
    let errors: Vec<f64> = rows.iter().filter_map(|row| prediction_error(row)).collect();
    let share = |count: usize, all: usize| count as f64 / all as f64;
    Some(Distribution {
        name: name.into(),
        count,
        mean: geometric_mean(&ratios),
        twentieth: ratios.get(count / 20).copied()?,
        median: ratios[count / 2],
        worst: ratios[0],
        slower: share(ratios.iter().filter(|ratio| **ratio < SLOWER).count(), count),
        predicted: (!errors.is_empty()).then(|| {
            let good = errors.iter().filter(|error| error.abs() <= GOOD).count();
            share(good, errors.len())
        }),
    })
}

/// The classes of rows, in the order in which they first appear.
pub fn classes(rows: &[Row]) -> Vec<&str> {
    let mut classes: Vec<&str> = Vec::new();
    for class in rows.iter().filter_map(|row| row.class.as_deref()) {
        if !classes.contains(&class) {
            classes.push(class);
        }
    }
    classes
}

/// Of each class, of what is on 16 bytes and what is not, of what candle need not copy, and of all.
pub fn distributions(rows: &[Row]) -> Vec<Distribution> {
    let of = |name: &str, belongs: &dyn Fn(&Row) -> bool| {
        let rows: Vec<&Row> = rows.iter().filter(|row| belongs(row)).collect();
        distribution(name, &rows)
    };
    let mut all: Vec<Distribution> = classes(rows)
        .into_iter()
        .filter_map(|class| of(class, &|row| row.class.as_deref() == Some(class)))
        .collect();
    all.extend(of("rows on 16 bytes", &|row| row.off_16_bytes == Some(false)));
    all.extend(of("rows off 16 bytes", &|row| row.off_16_bytes == Some(true)));
    all.extend(of("no copies by candle", &|row| row.baseline_copies.is_none()));
    all.extend(of("all", &|_| true));
    all
}

/// The rows with the lowest ratios, the lowest first.
pub fn worst(rows: &[Row], count: usize) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().filter(|row| row.speedup.is_some()).collect();
    rows.sort_by(|x, y| x.speedup.unwrap_or_default().total_cmp(&y.speedup.unwrap_or_default()));
    rows.truncate(count);
    rows
}

/// A product with the way in which it is computed: the kernel, how k is cut, and what is repacked beforehand.
pub fn plan_of(row: &Row) -> String {
    let mut plan = row.kernel.clone().unwrap_or_default();
    if let Some(slices) = row.split_k {
        plan += &format!(", k in {slices}");
    }
    if let Some(ranges) = row.stream_ranges {
        plan += &format!(", k in {ranges} ranges");
    }
    if let Some(repacked) = &row.repacked {
        plan += &format!(", {repacked} repacked");
    }
    plan
}

/// What else there is to know of a product: what its operands are views of, and what candle copies.
pub fn remarks_of(row: &Row) -> String {
    let mut remarks = Vec::new();
    for (name, view) in [("A", &row.a_view), ("B", &row.b_view)] {
        remarks.extend(view.as_ref().map(|view| format!("{name} {view}")));
    }
    if let Some(copied) = &row.baseline_copies {
        remarks.push(format!("candle copies {copied}"));
    }
    if row.off_16_bytes == Some(true) {
        remarks.push("off 16 bytes".into());
    }
    if row.cold == Some(true) {
        remarks.push("B cold".into());
    }
    remarks.join(", ")
}
