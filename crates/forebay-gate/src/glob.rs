//! Patterns for names of tests: `*` stands for any text.

/// Whether `pattern` describes all of `text`.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(before) else { return false };
    (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(after, &rest[at..]))
}

pub(crate) fn any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("a/lib::x", "a/lib::x", true),
            ("a/lib::x", "a/lib::xy", false),
            ("a/*", "a/lib::x", true),
            ("*::x", "a/lib::x", true),
            ("a/*::worlds::*", "a/all::worlds::one", true),
            ("a/*::worlds::*", "a/all::world::one", false),
            ("*", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
