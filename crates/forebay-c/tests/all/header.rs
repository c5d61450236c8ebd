//! The header is written by hand. It has the functions, structs and numbers of the sources, and no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the header without comments, with one space for any white space.
fn header() -> String {
    let text = source("include/forebay.h");
    let mut code = String::new();
    let mut rest = &text[..];
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").expect("each comment ends").1;
    }
    code.push_str(rest);
    words(&code)
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a name of Rust as parts in lower case: `CloseReport` is `close_report`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

fn base(name: &str) -> String {
    match name {
        "usize" => "size_t".to_owned(),
        "u64" => "uint64_t".to_owned(),
        "u32" => "uint32_t".to_owned(),
        "i64" => "int64_t".to_owned(),
        "c_int" => "int".to_owned(),
        "c_char" => "char".to_owned(),
        "c_void" => "void".to_owned(),
        other => format!("fb_{}", snake(other)),
    }
}

/// Returns the declaration of a name with a type of Rust, as C has it.
fn declaration(rust: &str, name: &str) -> String {
    if let Some(to) = rust.strip_prefix("*mut *mut ") {
        format!("{} **{name}", base(to))
    } else if let Some(to) = rust.strip_prefix("*mut ") {
        format!("{} *{name}", base(to))
    } else if let Some(to) = rust.strip_prefix("*const ") {
        format!("const {} *{name}", base(to))
    } else {
        format!("{} {name}", base(rust))
    }
}

/// Returns name and prototype of each function of the sources.
fn prototypes() -> Vec<(String, String)> {
    let text = words(&source("src/abi.rs"));
    let mut all = Vec::new();
    for part in text.split("extern \"C\" fn ").skip(1) {
        let (name, rest) = part.split_once('(').expect("a function has parameters");
        let (parameters, rest) = rest.split_once(") -> ").expect("each function returns something");
        let (result, _) = rest.split_once(" {").expect("a function has a body");
        let each = |parameter: &str| {
            let (name, rust) = parameter.trim().split_once(": ").expect("a parameter has a type");
            declaration(rust, name)
        };
        let parameters: Vec<_> =
            parameters.split(',').filter(|parameter| !parameter.trim().is_empty()).map(each).collect();
        let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
        all.push((name.to_owned(), format!("{};", declaration(result, &format!("{name}({parameters})")))));
    }
    all
}

/// Returns the names of functions in C.
fn functions_in(code: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let before =
        |end: usize| code[..end].rsplit(|letter| !is_name(letter)).next().unwrap_or_default().to_owned();
    code.match_indices('(').map(|(end, _)| before(end)).filter(|name| name.starts_with("fb_")).collect()
}

#[test]
fn each_function_is_in_the_header_as_it_is_in_the_sources() {
    let (header, prototypes) = (header(), prototypes());
    assert!(prototypes.len() >= 20, "only {} functions were found", prototypes.len());
    let missing: Vec<_> = prototypes.iter().filter(|(_, prototype)| !header.contains(prototype)).collect();
    assert!(missing.is_empty(), "the header has not: {missing:#?}");
    let names: BTreeSet<_> = prototypes.into_iter().map(|(name, _)| name).collect();
    assert_eq!(functions_in(&header), names);
    let recorded: BTreeSet<_> = source("symbols.txt").lines().map(str::to_owned).collect();
    assert_eq!(
        recorded, names,
        "symbols.txt records what programs may link to: name a change in CHANGELOG.md"
    );
}

#[test]
fn each_struct_is_in_the_header_field_by_field() {
    let (header, types) = (header(), source("src/types.rs"));
    let mut found = 0;
    for part in types.split("#[repr(C)]\npub struct ").skip(1) {
        let (name, rest) = part.split_once(" {").expect("a struct has fields");
        let (fields, _) = rest.split_once("\n}").expect("a struct ends");
        let lines = fields.lines().filter_map(|line| line.trim().strip_prefix("pub "));
        let each = |line: &str| {
            let (name, rust) = line.trim_end_matches(',').split_once(": ").expect("a field has a type");
            format!("{};", declaration(rust, name))
        };
        let fields: Vec<_> = lines.map(each).collect();
        assert_eq!(fields[0], "size_t size;", "{name} begins with its size");
        let name = base(name);
        let wanted = format!("typedef struct {name} {{ {} }} {name};", fields.join(" "));
        assert!(header.contains(&wanted), "the header has not: {wanted}");
        found += 1;
    }
    assert!(found >= 8, "only {found} structs were found");
    assert_eq!(
        header.matches("typedef struct").count(),
        found + 3,
        "beside the structs there are three handles"
    );
}

#[test]
fn each_number_is_in_the_header() {
    let header = header();
    let mut numbers = Vec::new();
    for line in source("src/types.rs").lines() {
        if let Some((name, number)) =
            line.strip_prefix("pub const ").and_then(|rest| rest.trim_end_matches(';').split_once(": u32 = "))
        {
            numbers.push(format!("{name} = {number}"));
        }
    }
    let code = source("src/code.rs");
    let (_, variants) = code.split_once("pub enum Code {").expect("the enum of codes");
    let (variants, _) = variants.split_once("\n}").expect("its end");
    for line in variants.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if let Some((name, number)) = line.trim_end_matches(',').split_once(" = ") {
            numbers.push(format!("FB_{} = {number}", snake(name).to_ascii_uppercase()));
        }
    }
    assert!(numbers.len() >= 40, "only {} numbers were found", numbers.len());
    for number in &numbers {
        let is_there = [",", " }"].iter().any(|end| header.contains(&format!("{number}{end}")));
        assert!(is_there, "the header has not: {number}");
    }
    let in_header = header.split_whitespace().filter(|word| word.starts_with("FB_")).count();
    assert_eq!(in_header, numbers.len(), "the header has other numbers, or names one in code");
}
