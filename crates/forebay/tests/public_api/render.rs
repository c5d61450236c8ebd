//! Signatures as one line of text each, independent of how the source is laid out.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{FnArg, Pat, Signature};

/// Returns the tokens on one line, spaced as rustfmt would.
pub(crate) fn line(item: &impl ToTokens) -> String {
    let mut tokens = Vec::new();
    flatten(item.to_token_stream(), &mut tokens);
    let mut text = String::new();
    for (index, token) in tokens.iter().enumerate() {
        if index > 0 && spaced(&tokens[index - 1], token) {
            text.push(' ');
        }
        text.push_str(token);
    }
    text
}

/// Returns a function's signature without the parts that callers do not see: `mut` before arguments, trailing
/// commas.
pub(crate) fn signature(signature: &Signature) -> String {
    let mut signature = signature.clone();
    for input in &mut signature.inputs {
        match input {
            FnArg::Receiver(receiver) => receiver.mutability = None,
            FnArg::Typed(argument) => {
                if let Pat::Ident(name) = argument.pat.as_mut() {
                    name.mutability = None;
                }
            }
        }
    }
    signature.inputs.pop_punct();
    signature.generics.params.pop_punct();
    if let Some(clause) = &mut signature.generics.where_clause {
        clause.predicates.pop_punct();
    }
    line(&signature)
}

/// Collects words and operators, with the parts of `->`, `::`, `'a` and the like put together.
fn flatten(stream: TokenStream, tokens: &mut Vec<String>) {
    let mut joined = false;
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.extend((!open.is_empty()).then(|| open.to_owned()));
                flatten(group.stream(), tokens);
                tokens.extend((!close.is_empty()).then(|| close.to_owned()));
                joined = false;
            }
            TokenTree::Punct(punct) => {
                match tokens.last_mut() {
                    Some(last) if joined && is_operator(last, punct.as_char()) => last.push(punct.as_char()),
                    _ => tokens.push(punct.as_char().to_string()),
                }
                joined = punct.spacing() == proc_macro2::Spacing::Joint;
            }
            word => {
                match tokens.last_mut() {
                    Some(last) if joined && last.ends_with('\'') => last.push_str(&word.to_string()),
                    // A literal may span lines.
                    _ => tokens.push(word.to_string().replace('\n', " ")),
                }
                joined = false;
            }
        }
    }
}

/// Returns whether the two are one operator: `&` and `'` next to each other are not, and `>>` closes two
/// lists of generics.
fn is_operator(first: &str, second: char) -> bool {
    matches!(
        (first, second),
        ("-" | "=", '>') | (":", ':') | ("." | "..", '.') | ("..", '=') | ("=" | "!", '=')
    )
}

/// Returns whether rustfmt puts a space between the two.
fn spaced(before: &str, after: &str) -> bool {
    let is_word =
        |token: &str| token.chars().next().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '"');
    match (before, after) {
        ("," | ";" | "->" | "=>" | "=" | "+" | ":", _) | (_, "->" | "=>" | "=" | "+" | "{") => true,
        (_, "," | ";" | ":" | "::" | ")" | "]" | ">" | "." | "?" | "..") => false,
        ("(" | "[" | "<" | "&" | "::" | "*" | "#" | "." | ".." | "?" | "!", _) => false,
        ("{", _) | (_, "}") => true,
        ("for" | "where" | "as" | "dyn" | "mut" | "const" | "in", "(" | "[") => true,
        (_, "(" | "[" | "<") => !is_word(before) && before != ">",
        (_, "!") => !is_word(before),
        _ => true,
    }
}

#[test]
fn lines_look_like_rustfmt_wrote_them() {
    for text in [
        "fn read<'a, F>(&'a self, range: Range<u64>) -> Result<Vec<u8>, Error> where F: Fn(&[u8]) -> bool + Send + 'a",
        "unsafe impl<T: ?Sized> Send for Pending<T>",
        "#[cfg(feature = \"tokio\")] struct Open { mode: u32 }",
        "fn next(&mut self) -> Option<(usize, &'static str)>",
    ] {
        let tokens: TokenStream = text.parse().unwrap();
        assert_eq!(line(&tokens), text);
    }
}
