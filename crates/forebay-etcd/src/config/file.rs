//! The file of `--config-file`: of YAML the part that etcd's own sample has. Anything else is refused, by its line.
//!
//! That is `NAME: VALUE`, lists, and mappings such as those with the files for TLS. A number of a flag that is a duration is
//! nanoseconds; an empty value means none, as in etcd for lists of URLs.

use super::{duration, flags};

/// The mappings, with the prefix of their flags.
const MAPPINGS: [(&str, &str); 3] =
    [("client-transport-security", ""), ("peer-transport-security", "peer-"), ("socket-options", "socket-")];

/// A name with a value that may follow in further lines.
struct OpenName {
    name: String,
    /// Of a mapping: how far its names stand to the right.
    indent: Option<usize>,
    /// The flag that has the items of a list below.
    list: Option<String>,
}

/// Returns the flags that a file sets, with their values.
///
/// # Errors
/// The line that is not understood.
pub(super) fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut settings: Vec<(String, String)> = Vec::new();
    let mut open: Option<OpenName> = None;
    // Editors of Windows begin a file with a byte order mark, which YAML passes over.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let failed = |why: &str| format!("line {}: {why}", number + 1);
        let line = without_comment(line).trim_end();
        let content = line.trim_start_matches(' ');
        let indent = line.len() - content.len();
        if content.is_empty() || line == "---" {
            continue;
        }
        if let Some(item) = content.strip_prefix("- ") {
            let list = open.as_ref().and_then(|open| open.list.as_ref());
            let list = list.ok_or_else(|| failed("a list has a name before it"))?;
            add(&mut settings, list, &scalar(item).map_err(|why| failed(&why))?);
            continue;
        }
        let (name, value) = content.split_once(':').ok_or_else(|| failed("it has no name with a colon"))?;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(failed("it has no name with a colon"));
        }
        if !value.is_empty() && !value.starts_with(' ') {
            return Err(failed("a space is missing behind the colon"));
        }
        let value = value.trim_start();
        let is_none = matches!(value, "" | "~" | "null" | "Null" | "NULL" | "''" | "\"\"");
        let flag = if indent == 0 {
            let list =
                Some(name.to_owned()).filter(|name| !MAPPINGS.iter().any(|(mapping, _)| mapping == name));
            open = value.is_empty().then(|| OpenName { name: name.to_owned(), indent: None, list });
            name.to_owned()
        } else {
            let misplaced = || failed("it stands too far to the right, or to the left");
            let above = open.as_mut().ok_or_else(misplaced)?;
            if *above.indent.get_or_insert(indent) != indent {
                return Err(misplaced());
            }
            let mapping = MAPPINGS.iter().find(|(mapping, _)| *mapping == above.name);
            let (_, prefix) =
                mapping.ok_or_else(|| failed(&format!("{} has no names below it here", above.name)))?;
            let flag = flag_of(prefix, name);
            above.list = flag.clone().filter(|_| value.is_empty());
            match flag {
                Some(flag) => flag,
                None if is_none => continue,
                None => return Err(failed(&format!("{name} is not supported here"))),
            }
        };
        if settings.iter().any(|(other, _)| *other == flag) {
            return Err(failed(&format!("{flag} comes twice")));
        }
        match value.strip_prefix('[') {
            Some(list) => {
                let mut list = list.to_owned();
                while !list.ends_with(']') {
                    let (_, more) = lines.next().ok_or_else(|| failed("the list has no end"))?;
                    list = format!("{list} {}", without_comment(more).trim());
                }
                list.pop();
                for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
                    add(&mut settings, &flag, &scalar(item).map_err(|why| failed(&why))?);
                }
            }
            None if is_none => {}
            None => {
                let value = with_unit(&flag, scalar(value).map_err(|why| failed(&why))?);
                settings.push((flag, value));
            }
        }
    }
    Ok(settings)
}

fn flag_of(prefix: &str, name: &str) -> Option<String> {
    let side = if prefix.is_empty() { "client-" } else { prefix };
    let flag = match name {
        "allowed-cn" | "allowed-hostname" => format!("{side}cert-{name}"),
        "skip-client-san-verification" => format!("peer-{name}"),
        _ => format!("{prefix}{name}"),
    };
    // One that is passed over would lower what callers must show.
    flags::find(&flag).map(|flag| flag.name.to_owned())
}

fn add(settings: &mut Vec<(String, String)>, flag: &str, item: &str) {
    match settings.iter_mut().find(|(other, _)| other == flag) {
        Some((_, list)) => *list = format!("{list},{item}"),
        None => settings.push((flag.to_owned(), item.to_owned())),
    }
}

fn with_unit(flag: &str, value: String) -> String {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let default = flags::default_of(flag);
    let is_time = duration(default).is_some() && !is_number(default);
    if is_time && is_number(&value) { format!("{value}ns") } else { value }
}

/// Returns a line without its comment: from a `#` at the start or after a space, outside of quotes.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, character) in line.char_indices() {
        match (quote, character) {
            (None, '#') if before == ' ' => return &line[..at],
            (None, '"' | '\'') if matches!(before, ' ' | '[' | ',') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            _ => {}
        }
        before = character;
    }
    line
}

/// Returns the text of a value in one line.
fn scalar(text: &str) -> Result<String, String> {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(rest) = text.strip_prefix(quote) {
            let inner = rest.strip_suffix(quote).filter(|inner| !inner.contains([quote, '\\']));
            return inner.map(str::to_owned).ok_or_else(|| format!("{text} has quotes or escapes within"));
        }
    }
    let is_other = text.starts_with(['{', '&', '*', '!', '|', '>', '%', '@', '`', '[', '?']);
    if is_other || text.contains(": ") || text.ends_with(':') {
        return Err(format!(
            "{text} is YAML of a kind that is not read here: give one value, in quotes if need be"
        ));
    }
    Ok(text.to_owned())
}
