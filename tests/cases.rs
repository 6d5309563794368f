//! The cases that the benchmarks and the programs that measure share, and how a command line names them.

#[allow(dead_code)] // the test has a part of it
#[path = "../benches/support/case.rs"]
mod case;

use case::{grid, parse_shapes, parse_sizes, Case, Layout};

#[test]
fn sizes_and_shapes_are_read_and_nonsense_is_named() {
    assert_eq!(parse_sizes("256..2048").unwrap(), [256, 512, 1024, 2048]);
    assert_eq!(parse_sizes("300..600").unwrap(), [512]);
    assert_eq!(parse_sizes("300,1000").unwrap(), [300, 1000]);
    for wrong in ["", "0", "-1", "512..256", "x..y", "600..700", "99999999999999999999"] {
        assert!(parse_sizes(wrong).is_err(), "{wrong}");
    }
    assert_eq!(parse_shapes("1x2x3,7x4x5x6").unwrap(), [[1, 1, 2, 3], [7, 4, 5, 6]]);
    assert!(parse_shapes("4096x512").unwrap_err().contains("MxNxK"));
    assert_eq!("tn".parse::<Layout>().unwrap(), Layout::TN);
}

#[test]
fn a_case_is_the_problem_that_it_says() {
    for layout in Layout::ALL {
        let problem = Case::new(24, 36, 48, layout).problem(Default::default(), Default::default(), false);
        assert_eq!(problem.layout_name(), layout.to_string());
        assert_eq!(problem.validate(), Ok(()));
    }
    assert_eq!(grid().len(), 24 + 72 + 6 + 3);
}
