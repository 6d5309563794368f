//! Numbers that stand in the CUDA sources, read from there.

use std::path::Path;

/// The text of a file in `cuda/`.
pub fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The value of `constexpr int NAME = …` where that is a number, a shifted one or a product of two.
pub fn constant(source: &str, name: &str) -> Option<usize> {
    let declared = format!("{name} = ");
    let lines = source.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut values = lines.filter_map(|line| {
        let (before, after) = line.split_once(&declared)?;
        let value = after.split([',', ';']).next()?.trim();
        let product = || value.split(" * ").map(|factor| factor.parse::<usize>().ok()).product();
        (before.contains("constexpr int ") && before.ends_with(' ')).then(|| match value.split_once(" << ") {
            Some((number, bits)) => Some(number.parse::<usize>().ok()? << bits.parse::<u32>().ok()?),
            None => product(),
        })
    });
    let value = values.next()??;
    assert!(values.next().is_none(), "{name} is declared twice");
    Some(value)
}
