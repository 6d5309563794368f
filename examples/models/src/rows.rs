//! What was measured, as rows of a result file and as lines to read.

use crate::measure::{Measured, Outcome};
use crate::record::Row;
use crate::way::Way;
use std::fmt::Write;

/// A row for each way but stock; where candle itself cannot run the model, one that says so.
pub fn of_model(outcome: &Outcome) -> Vec<Row> {
    let Some(stock) = outcome.ways.first() else {
        return Vec::new();
    };
    let only_stock = stock.note.is_some();
    let ways = outcome
        .ways
        .iter()
        .filter(|measured| only_stock || measured.way != Way::Stock);
    ways.map(|measured| row(outcome, stock, measured)).collect()
}

fn row(outcome: &Outcome, stock: &Measured, measured: &Measured) -> Row {
    let products = measured.products.as_ref();
    let times = products.and_then(|products| products.times);
    let slowest = products.and_then(|products| products.slowest.as_ref());
    let share = |part: Option<f64>, whole: Option<f64>| Some(part? / whole?);
    Row {
        bench: "model".into(),
        model: Some(outcome.model.into()),
        setting: (!outcome.setting.is_empty()).then(|| outcome.setting.clone()),
        way: Some(measured.way.name().into()),
        precision: measured.precision.map(|precision| precision.name().into()),
        dtype: Some(outcome.dtype.as_str().into()),
        us: measured.us,
        gpu_us: measured.gpu_us,
        baseline: stock.us.map(|_| "candle".into()),
        baseline_us: stock.us,
        baseline_gpu_us: stock.gpu_us,
        speedup: share(stock.us, measured.us),
        max_diff: measured.max_diff,
        products: products.map(|products| products.calls as usize),
        taken_over: products.map(|products| products.taken as usize),
        passed_on: products.map(|products| products.passed_on.clone()),
        products_share: share(times.map(|times| times.ours_us), measured.gpu_us),
        baseline_products_share: share(times.map(|times| times.cublas_us), stock.gpu_us),
        slowest_product: slowest.map(|slowest| slowest.what.clone()),
        slowest_product_speedup: slowest.map(|slowest| slowest.speedup),
        note: measured.note.clone(),
        ..Row::default()
    }
}

/// The columns of [`lines`].
pub fn heading() -> String {
    format!(
        "{:<16} {:<19} {:<5} {:<15} {:<12} {:>10} {:>10} {:>7} {:>11} {:>9}  {}",
        "model",
        "setting",
        "type",
        "way",
        "precision",
        "ms a call",
        "ms on GPU",
        "×",
        "difference",
        "products",
        "their share, before and after"
    )
}

/// A line for each way.
pub fn lines(outcome: &Outcome) -> String {
    let mut text = String::new();
    let Some(stock) = outcome.ways.first() else {
        return text;
    };
    for measured in &outcome.ways {
        let row = row(outcome, stock, measured);
        let ms = |us: Option<f64>| us.map_or(String::new(), |us| format!("{:.3}", us * 1e-3));
        let speedup = row.speedup.map_or(String::new(), |speedup| format!("{speedup:.2}"));
        let difference = row
            .max_diff
            .map_or(String::new(), |difference| format!("{difference:.1e}"));
        let products = match (row.taken_over, row.products) {
            (Some(taken), Some(all)) => format!("{taken}/{all}"),
            _ => String::new(),
        };
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let mut remarks: Vec<String> = Vec::new();
        if let (Some(before), Some(after)) = (row.baseline_products_share, row.products_share) {
            remarks.push(format!("{} → {}", percent(before), percent(after)));
        }
        if let (Some(what), Some(speedup)) = (&row.slowest_product, row.slowest_product_speedup) {
            remarks.push(format!("slowest product {speedup:.2}: {what}"));
        }
        let passed_on = row.passed_on.iter().flatten();
        remarks.extend(passed_on.map(|(reason, calls)| format!("{calls} passed on: {reason}")));
        if measured.folded > 0 {
            remarks.push(format!("{} kernels folded into products", measured.folded));
        }
        remarks.extend(row.note);
        let line = format!(
            "{:<16} {:<19} {:<5} {:<15} {:<12} {:>10} {:>10} {speedup:>7} {difference:>11} {products:>9}  {}",
            outcome.model,
            outcome.setting,
            outcome.dtype.as_str(),
            measured.way,
            row.precision.unwrap_or_default(),
            ms(measured.us),
            ms(measured.gpu_us),
            remarks.join("; ")
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::products::{Products, Slowest, Times};
    use candle_core::DType;
    use candle_sgemm::Precision;

    #[test]
    fn rows_hold_ratios_shares_and_reasons() {
        let measured = |way, us, gpu_us| Measured {
            way,
            precision: (way != Way::Stock).then_some(Precision::Fp32),
            us,
            gpu_us,
            max_diff: (way != Way::Stock).then_some(1e-6),
            products: (way == Way::Override).then(|| Products {
                calls: 10,
                taken: 8,
                passed_on: [("a reason".to_string(), 2)].into(),
                times: Some(Times {
                    ours_us: 20.0,
                    cublas_us: 60.0,
                }),
                slowest: Some(Slowest {
                    what: "NT 8×8×8".into(),
                    speedup: 0.98,
                }),
            }),
            folded: 0,
            note: us.is_none().then(|| "it reads the host".into()),
        };
        let outcome = Outcome {
            model: "bert-base",
            setting: "8×128".into(),
            dtype: DType::F32,
            ways: vec![
                measured(Way::Stock, Some(120.0), Some(100.0)),
                measured(Way::Override, Some(80.0), Some(50.0)),
                measured(Way::OverrideGraph, None, None),
            ],
        };
        let rows = of_model(&outcome);
        let [over, graph] = &rows[..] else {
            panic!("{} rows", rows.len())
        };
        assert_eq!(
            (over.speedup, over.us, over.baseline_us),
            (Some(1.5), Some(80.0), Some(120.0))
        );
        assert_eq!(
            (over.baseline_products_share, over.products_share),
            (Some(0.6), Some(0.4))
        );
        assert_eq!((over.products, over.taken_over), (Some(10), Some(8)));
        assert_eq!((graph.us, graph.note.as_deref()), (None, Some("it reads the host")));
        let text = lines(&outcome);
        assert_eq!(text.lines().count(), 3);
        for part in [
            "60 % → 40 %",
            "2 passed on: a reason",
            "slowest product 0.98: NT 8×8×8",
            "8/10",
            "1.50",
            "it reads the host",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // What candle itself cannot run has one row, which says why.
        let cannot = Outcome {
            ways: vec![measured(Way::Stock, None, None)],
            ..outcome
        };
        assert_eq!(of_model(&cannot)[0].note.as_deref(), Some("it reads the host"));
    }
}
