//! The rooms of `src/`: no two files import each other, not by way of others either. What a module takes from its own submodules does
//! not count: it hands that on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module, by the names on the way to it from the crate's root.
type Module = Vec<String>;

/// The files below `folder`, by the modules that they are, without tests.
fn files(folder: &Path, module: &[String], found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        let inner = [module, std::slice::from_ref(&name)].concat();
        match name.as_str() {
            _ if path.is_dir() => files(&path, &inner, found),
            "tests" => {}
            "mod" | "lib" => drop(found.insert(module.to_vec(), fs::read_to_string(path).unwrap())),
            _ => drop(found.insert(inner, fs::read_to_string(path).unwrap())),
        }
    }
}

/// What the compiler reads of a file where it builds neither tests nor documentation. As `rustfmt` writes it: what begins on a line
/// without an indent ends on one.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if ["#[cfg(test)]", "#[cfg(doc)]"].contains(&line) {
            let on_one_line = lines.next().is_none_or(|line| line.ends_with(';'));
            if !on_one_line {
                lines.by_ref().find(|line| ["}", "};"].contains(line));
            }
            continue;
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// The paths that a tree of imports stands for, `a::{b, c::d}` for `a::b` and `a::c::d`. What is behind the tree is left in `text`.
fn tree(text: &mut &str, before: &[String], paths: &mut Vec<Module>) {
    let mut path = before.to_vec();
    loop {
        *text = text.trim_start();
        if let Some(rest) = text.strip_prefix('{') {
            *text = rest;
            loop {
                tree(text, &path, paths);
                *text = text.trim_start();
                match text.strip_prefix(',') {
                    Some(rest) => *text = rest,
                    None => break,
                }
            }
            *text = text.strip_prefix('}').unwrap_or(text);
            return;
        }
        let end = text
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len());
        if end > 0 {
            path.push(text[..end].into());
        }
        *text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) => *text = rest,
            None => break,
        }
    }
    paths.push(path);
}

/// The name of the module that a line without an indent begins, if it does.
fn begins_module(line: &str) -> Option<&str> {
    let (before, name) = line.strip_suffix(" {")?.rsplit_once("mod ")?;
    (before.is_empty() || before.starts_with("pub")).then_some(name)
}

/// Paths of this crate in the code of a module, from the crate's root on.
fn paths(module: &[String], code: &str) -> Vec<Module> {
    let mut all = Vec::new();
    // With the module inside of the file, where one has begun.
    let mut place = module.to_vec();
    let mut start = 0;
    for line in code.split_inclusive('\n') {
        match line.trim_end_matches('\n') {
            "}" => place.truncate(module.len()),
            line => place.extend(begins_module(line).map(String::from)),
        }
        for root in ["crate::", "super::"] {
            for (at, _) in line.match_indices(root) {
                // Not the second of `super::super::`, nor the end of a longer name.
                if line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                // A tree may go on for lines.
                let mut found = Vec::new();
                tree(&mut &code[start + at..], &[], &mut found);
                all.extend(found.into_iter().map(|path| {
                    let ups = path.iter().take_while(|&name| name == "super").count();
                    let names = path[ups.max(1)..].iter().cloned();
                    let base = if ups > 0 { place.len().saturating_sub(ups) } else { 0 };
                    place[..base].iter().cloned().chain(names).collect::<Module>()
                }));
            }
        }
        start += line.len();
    }
    all
}

/// Files in the order in which one can read them, each behind all that it imports, or those that are left because they import each other.
fn in_order(
    mut imports: BTreeMap<Module, BTreeSet<Module>>,
) -> Result<Vec<Module>, BTreeMap<Module, BTreeSet<Module>>> {
    let mut order: Vec<Module> = Vec::new();
    while !imports.is_empty() {
        let ready = |(_, of): &(&Module, &BTreeSet<Module>)| of.iter().all(|module| order.contains(module));
        let Some(next) = imports.iter().find(ready).map(|(module, _)| module.clone()) else {
            return Err(imports);
        };
        imports.remove(&next);
        order.push(next);
    }
    Ok(order)
}

/// What each file imports of the others.
fn imports(files: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let file_of = |path: Module| (0..=path.len()).rev().find_map(|end| files.get_key_value(&path[..end]));
    let of = |(module, text): (&Module, &String)| {
        let imported = paths(module, &code(text)).into_iter().filter_map(file_of);
        // The root says which modules there are and is named by what it hands on.
        let others = imported
            .map(|(other, _)| other.clone())
            .filter(|other| other != module && !other.is_empty());
        (module.clone(), others.collect())
    };
    files.iter().map(of).collect()
}

#[test]
fn no_files_import_each_other() {
    let mut all = BTreeMap::new();
    files(Path::new("src"), &[], &mut all);
    let imports = imports(&all);
    assert!(
        imports.values().map(BTreeSet::len).sum::<usize>() > 200,
        "imports are not found"
    );
    if let Err(left) = in_order(imports) {
        let lines: Vec<String> = left
            .iter()
            .map(|(module, of)| {
                let of: Vec<String> = of
                    .iter()
                    .filter(|of| left.contains_key(*of))
                    .map(|of| of.join("::"))
                    .collect();
                format!("{} imports {}", module.join("::"), of.join(", "))
            })
            .collect();
        panic!("files that import each other, or what does:\n{}", lines.join("\n"));
    }
}

#[test]
fn circles_are_seen() {
    let module = |name: &str| vec![name.to_string()];
    let files = |texts: [&str; 3]| {
        let names = ["a", "b", "c"].map(module);
        names
            .into_iter()
            .zip(texts.map(String::from))
            .collect::<BTreeMap<_, _>>()
    };
    let line = files([
        "use crate::{\n    b::{X, y::Z},\n    c,\n};",
        "fn f() {\n    super::c::g();\n}",
        "// crate::a",
    ]);
    assert_eq!(in_order(imports(&line)), Ok(["c", "b", "a"].map(module).to_vec()));
    let circle = files([
        "use crate::b::X;",
        "use super::c::{f, g};",
        "fn f() {\n    crate::a::h();\n}",
    ]);
    assert_eq!(in_order(imports(&circle)).unwrap_err().len(), 3);
    let inside = files([
        "use crate::b::X;",
        "mod cuda {\n    use super::super::a::h;\n}\nuse super::c;",
        "",
    ]);
    assert_eq!(in_order(imports(&inside)).unwrap_err().len(), 2);
    let in_tests = files([
        "use crate::b::X;",
        "#[cfg(test)]\nmod tests {\n    use crate::a::h;\n}",
        "",
    ]);
    assert!(in_order(imports(&in_tests)).is_ok());
}
