//! The result files, the documents' generated blocks, and the plots.

use report::distribution::distributions;
use report::record::{geometric_mean, median, timestamp, write_whole, Report, Row};
use report::{blocks, series};

fn report() -> Report {
    let row = |kernel: &str, size: usize, us: f64| Row {
        bench: "ladder".into(),
        kernel: Some(kernel.into()),
        dtype: Some("f32".into()),
        layout: Some("NN".into()),
        m: Some(size),
        n: Some(size),
        k: Some(size),
        batch: Some(1),
        us: Some(us),
        baseline: Some("cublas".into()),
        baseline_us: Some(50.0),
        speedup: Some(50.0 / us),
        tflops: Some(2.0 * (size as f64).powi(3) / us * 1e-6),
        ..Row::default()
    };
    Report {
        gpu: "A card, made up".into(),
        date: "2026-01-02T03:04:05Z".into(),
        command: "ladder".into(),
        ffma_tflops: Some(64.0),
        rows: vec![row("one", 512, 40.0), row("one", 1024, 100.0), row("two", 1024, 80.0)],
        ..Report::default()
    }
}

#[test]
fn dates_count_leap_years() {
    assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
    assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
    assert_eq!(timestamp(1_735_689_599), "2024-12-31T23:59:59Z");
    assert_eq!(timestamp(4_107_542_400), "2100-03-01T00:00:00Z");
}

#[test]
fn means_are_means() {
    assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    assert!((geometric_mean(&[0.5, 2.0, 8.0]) - 2.0).abs() < 1e-12);
}

#[test]
fn reports_survive_a_file_and_become_csv() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/report.json");
    write_whole(&path, &report().to_json().unwrap()).unwrap();
    assert_eq!(Report::read(&path).unwrap(), report());
    let left = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "a temporary file was left behind");
    let csv = report().to_csv().unwrap();
    assert_eq!(csv.lines().count(), 4);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
    std::fs::write(&path, "{}").unwrap();
    let error = format!("{:#}", Report::read(&path).unwrap_err());
    assert!(error.contains("report.json"), "{error}");
}

#[test]
fn blocks_are_filled_once_and_for_all_and_the_rest_stays() {
    let reports = [("made-up".to_string(), report())];
    let text = "before\n<!-- generated: ladder -->\nold\n<!-- end of generated -->\nafter\n";
    let filled = blocks::fill(text, &reports, "plots").unwrap();
    assert!(
        filled.starts_with("before\n") && filled.ends_with("after\n"),
        "{filled}"
    );
    assert!(!filled.contains("old"), "{filled}");
    // 2·1024³ in 80 µs are 26.84 TFLOP/s, 41.9 % of 64; 50 µs are 62.5 % of 80.
    assert!(filled.contains("| `two` | 80.0 | 26.84 | 62.5 | 41.9 |"), "{filled}");
    assert!(filled.contains("plots/made-up-bars.svg"), "{filled}");
    assert_eq!(blocks::fill(&filled, &reports, "plots").unwrap(), filled);

    let plots = blocks::plots(&reports).unwrap();
    assert_eq!(plots.len(), 2);
    for (name, svg) in &plots {
        assert!(filled.contains(name.as_str()), "{name} is not shown");
        assert!(svg.starts_with("<svg") && svg.contains("two"), "{svg}");
    }
    assert_eq!(
        plots,
        blocks::plots(&reports).unwrap(),
        "plots must not change by themselves"
    );
}

#[test]
fn the_gpu_that_was_measured_last_is_shown_and_the_others_are_folded_away() {
    let of = |gpu: &str, date: &str| Report {
        gpu: gpu.into(),
        date: date.into(),
        ..report()
    };
    let reports = [
        ("a-ladder".to_string(), of("GPU A", "2026-01-01T00:00:00Z")),
        ("b-ladder".to_string(), of("GPU B", "2026-02-01T00:00:00Z")),
    ];
    let text = "<!-- generated: ladder -->\n<!-- end of generated -->\n";
    let filled = blocks::fill(text, &reports, "plots").unwrap();
    let at = |what: &str| filled.find(what).unwrap_or_else(|| panic!("no {what} in {filled}"));
    assert!(at("plots/b-ladder-bars.svg") < at("<details><summary>GPU A</summary>"));
    assert!(at("<details>") < at("plots/a-ladder-bars.svg") && at("plots/a-ladder-bars.svg") < at("</details>"));
}

#[test]
fn drawn_products_are_a_distribution_by_class_with_the_worst_of_them() {
    let row = |class: &str, speedup: f64, predicted_us: f64| Row {
        bench: "random".into(),
        class: Some(class.into()),
        kernel: Some("one".into()),
        split_k: Some(3),
        precision: Some("fp32".into()),
        layout: Some("NT".into()),
        m: Some(1),
        n: Some(2),
        k: Some(3),
        batch: Some(1),
        b_view: Some("heads".into()),
        baseline_copies: (class == "attention").then(|| "b".into()),
        off_16_bytes: Some(class == "head"),
        us: Some(10.0),
        predicted_us: Some(predicted_us),
        baseline_us: Some(10.0 * speedup),
        speedup: Some(speedup),
        ..Row::default()
    };
    let rows = vec![
        row("head", 2.0, 10.0),
        row("attention", 0.5, 20.0),
        row("head", 0.98, 11.0),
        row("head", 4.0, 9.0),
    ];
    let all = distributions(&rows);
    let names: Vec<&str> = all.iter().map(|of| of.name.as_str()).collect();
    let groups = [
        "head",
        "attention",
        "rows on 16 bytes",
        "rows off 16 bytes",
        "no copies by candle",
        "all",
    ];
    assert_eq!(names, groups);
    let last = all.last().unwrap();
    assert!((last.mean - (2.0f64 * 0.5 * 0.98 * 4.0).powf(0.25)).abs() < 1e-12);
    assert_eq!(
        (last.count, last.worst, last.slower, last.predicted),
        (4, 0.5, 0.25, Some(0.75))
    );
    assert!(distributions(&[]).is_empty());

    let reports = [("made-up".to_string(), Report { rows, ..report() })];
    let text = "<!-- generated: random -->\n<!-- end of generated -->\n";
    let filled = blocks::fill(text, &reports, "plots").unwrap();
    assert!(
        filled.contains("| attention | 1 | 0.500 | 0.500 | 0.500 | 0.500 | 100.0 % | 0.0 % |"),
        "{filled}"
    );
    let worst =
        "| attention | NT 1×2×3 | B heads, candle copies b | one, k in 3 | 10.00 | 20.00 (+100 %) | 5.00 | 0.500 |";
    assert!(filled.contains(worst), "{filled}");
    let plots = blocks::plots(&reports).unwrap();
    let [(name, svg)] = &plots[..] else {
        panic!("{} plots", plots.len())
    };
    assert!(
        filled.contains(name.as_str()) && svg.contains("attention") && svg.contains("4 drawn products"),
        "{svg}"
    );
    assert_eq!(plots, series::plots(&reports[0].1, "made-up").unwrap());
}

#[test]
fn models_stand_in_a_table_a_precision_with_what_was_not_measured() {
    let row = |model: &str, way: &str, us: Option<f64>| Row {
        bench: "model".into(),
        model: Some(model.into()),
        setting: Some("8×128".into()),
        way: Some(way.into()),
        precision: Some("fp32".into()),
        dtype: Some("f32".into()),
        us,
        gpu_us: us.map(|us| us / 2.0),
        baseline_us: Some(6000.0),
        baseline_gpu_us: Some(5000.0),
        speedup: us.map(|us| 6000.0 / us),
        max_diff: Some(2e-6),
        products: Some(10),
        taken_over: Some(8),
        passed_on: (way == "override").then(|| [("of another type".to_string(), 2)].into()),
        products_share: Some(0.4),
        baseline_products_share: Some(0.6),
        note: us.is_none().then(|| "it reads the host".into()),
        ..Row::default()
    };
    let mut rows = vec![
        row("one", "override", Some(4000.0)),
        row("one", "override+graph", Some(3000.0)),
        row("two", "override", Some(5000.0)),
        row("two", "override+graph", None),
        row("two", "fused", Some(2000.0)),
        row("two", "fused+graph", Some(1500.0)),
    ];
    let strict: Vec<Row> = rows[..1].to_vec();
    rows.extend(strict.into_iter().map(|row| Row {
        precision: Some("fp32-strict".into()),
        ..row
    }));
    // Those of one model in several settings stay in their own block.
    rows.push(Row {
        model: None,
        layer: Some("bert 1×16, fused".into()),
        ..rows[0].clone()
    });
    let reports = [("made-up".to_string(), Report { rows, ..report() })];
    let text =
        "<!-- generated: models -->\n<!-- end of generated -->\n<!-- generated: model -->\n<!-- end of generated -->\n";
    let filled = blocks::fill(text, &reports, "plots").unwrap();
    let one = "| one | 8×128 | 6.000 (5.000) | 4.000 (2.000) | 1.50 | 3.000 (1.500) | 2.00 | 60 % → 40 % | 8 of 10 | 2.0e-6 |";
    let two = "| two | 8×128 | 6.000 (5.000) | 5.000 (2.500) | 1.20 |  |  | 60 % → 40 % | 8 of 10 | 2.0e-6 |";
    let rebuilt = "| two | 8×128 | 6.000 (5.000) | 2.000 (1.000) | 3.00 | 1.500 (0.750) | 4.00 | 2.0e-6 |";
    let mean =
        "f32, fp32; stock candle's time ÷ ours, geometric mean: override 1.34 (of 2, least 1.20), override+graph 2.00 (of 1, \
         least 2.00), fused 3.00 (of 1, least 3.00), fused+graph 4.00";
    let why = "- two, f32, no override+graph: it reads the host.";
    let passed_on = "- one, f32: 2 products passed on: of another type.";
    for part in [
        one,
        two,
        rebuilt,
        "Rebuilt on",
        mean,
        why,
        passed_on,
        "f32, fp32-strict; ",
    ] {
        assert_eq!(filled.matches(part).count(), 1, "{part}: {filled}");
    }
    assert_eq!(filled.matches("bert 1×16, fused").count(), 1, "{filled}");
    let plots = blocks::plots(&reports).unwrap();
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["made-up-f32-fp32.svg", "made-up-f32-fp32-strict.svg"]);
    assert!(names.iter().all(|name| filled.contains(name)), "{filled}");
    assert!(plots[0].1.contains("one, override+graph") && !plots[0].1.contains("two, override+graph"));
    assert!(plots[0].1.contains("two, fused+graph") && !plots[0].1.contains("one, fused"));
    assert_eq!(plots, series::plots(&reports[0].1, "made-up").unwrap());
    let nothing = blocks::fill(text, &[], "plots").unwrap();
    assert_eq!(nothing.matches("No results are committed yet.").count(), 2);
}

#[test]
fn decoding_stands_beside_its_bound() {
    let row = |way: &str, precision: Option<&str>, us: f64| Row {
        bench: "decode".into(),
        model: Some("llama".into()),
        setting: Some("128 after 128".into()),
        way: Some(way.into()),
        precision: precision.map(String::from),
        dtype: Some("f32".into()),
        us: Some(us),
        speedup: Some(4000.0 / us),
        tokens_per_s: Some(1e6 / us),
        bound_us: Some(1000.0),
        copy_gbps: Some(4000.0),
        max_diff: precision.map(|_| 1e-6),
        ..Row::default()
    };
    let rows = vec![row("stock", None, 4000.0), row("fused+graph", Some("fp32"), 1250.0)];
    let reports = [("made-up".to_string(), Report { rows, ..report() })];
    let text = "<!-- generated: decode -->\n<!-- end of generated -->\n";
    let filled = blocks::fill(text, &reports, "plots").unwrap();
    for part in [
        "llama, f32, 128 after 128: to read its weights at the 4000 GB/s of a copy takes 1000.0 µs",
        "| stock |  | 250.0 | 4000.0 | 1.00 | 25.0 % |  |",
        "| fused+graph | fp32 | 800.0 | 1250.0 | 3.20 | 80.0 % | 1.0e-6 |",
        "plots/made-up.svg",
    ] {
        assert!(filled.contains(part), "{part}: {filled}");
    }
    let [(name, svg)] = &blocks::plots(&reports).unwrap()[..] else {
        panic!("one plot");
    };
    assert!(name == "made-up.svg" && svg.contains("the bound, f32"), "{svg}");
}

#[test]
fn a_pass_beforehand_is_stated_beside_the_product() {
    let mut report = report();
    report.rows[2].prepare_us = Some(10.0);
    report.rows[2].prepare_kernel = Some("turn".into());
    let text = "<!-- generated: ladder -->\n<!-- end of generated -->\n";
    let filled = blocks::fill(text, &[("made-up".to_string(), report)], "plots").unwrap();
    // The table has the product alone: 80 µs; with the pass 90, of which cuBLAS's 50 are 55.6 %.
    assert!(filled.contains("| `two` | 80.0 |"), "{filled}");
    let note = "`two`: A transposed beforehand by turn in 10.0 µs; 90.0 µs in all, 55.6 % of cuBLAS.";
    assert!(filled.contains(note), "{filled}");
}

#[test]
fn variants_stand_in_the_bars_and_are_nameless_among_the_lines() {
    let mut report = report();
    for row in &mut report.rows[..2] {
        row.kernel = Some("two_padded".into());
    }
    let plots = blocks::plots(&[("made-up".to_string(), report)]).unwrap();
    let of = |name: &str| &plots.iter().find(|(file, _)| file == name).unwrap().1;
    assert!(of("made-up-bars.svg").contains("two_padded"));
    let lines = of("made-up-sizes.svg");
    assert!(lines.contains("two") && lines.contains("cuBLAS") && !lines.contains("two_padded"));
    assert!(lines.contains("pale lines: variants"));
}

#[test]
fn errors_are_plotted_where_there_are_several_lengths_of_sums() {
    let row = |distribution: &str, precision: &str, k: usize| Row {
        bench: "accuracy".into(),
        distribution: Some(distribution.into()),
        precision: Some(precision.into()),
        layout: Some("NT".into()),
        k: Some(k),
        err_fro: Some(2e-7),
        baseline_err_fro: Some(4e-7),
        ..Row::default()
    };
    let precisions = ["fp32-strict", "fp32"];
    let mut report = report();
    report.rows = precisions
        .iter()
        .flat_map(|precision| [64, 256].map(|k| row("normal [0,1]", precision, k)))
        .chain(precisions.iter().map(|precision| row("hard", precision, 64)))
        .collect();
    let plots = series::plots(&report, "made-up").unwrap();
    let [(name, svg)] = &plots[..] else {
        panic!("{} plots", plots.len());
    };
    assert_eq!(name, "made-up-normal__0_1_.svg");
    for text in ["normal [0,1]", "cuBLAS", "multiply-adds", "fp32"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}

#[test]
fn the_program_draws_beside_a_result_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made-up.json");
    report().write(folder.path(), "made-up").unwrap();
    let draw = |file: &std::path::Path| {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_report"));
        program.arg("--plots").arg(file).output().unwrap()
    };
    let output = draw(&file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (name, svg) in series::plots(&report(), "made-up").unwrap() {
        assert_eq!(std::fs::read_to_string(folder.path().join(name)).unwrap(), svg);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4); // JSON, CSV, lines and bars
    let output = draw(&folder.path().join("missing.json"));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("missing.json"));
}

#[test]
fn blocks_without_an_end_or_a_meaning_are_errors() {
    let error = blocks::fill("<!-- generated: ladder -->\n", &[], "").unwrap_err();
    assert!(error.to_string().contains("end of generated"), "{error}");
    let error = blocks::fill("<!-- generated: laddr -->\n<!-- end of generated -->\n", &[], "").unwrap_err();
    assert!(error.to_string().contains("laddr"), "{error}");
}
