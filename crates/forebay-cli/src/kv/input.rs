//! Readers of the files of `kv load`: CSV, TSV and JSON lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use csv_core::{ReadFieldResult, Reader, ReaderBuilder};
use serde::Deserialize;

use super::entry::unhex;
use forebay_report::failure::Failure;

/// The size of the longest record. It holds the longest key and value as hexadecimal digits, and further columns.
const RECORD_BYTES_MAX: u64 = 40 << 20;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Fields between commas, in quotes where they hold one, a quote or an end of line.
    Csv,
    /// Fields between tabs, as they are.
    Tsv,
    /// One object a line: {"key":"..","value":".."}; key_hex and value_hex take hexadecimal digits.
    Jsonl,
}

impl Format {
    /// Returns the format that the file name's extension stands for.
    pub(super) fn of(file: &Path) -> Option<Format> {
        match file.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Format::Csv),
            "tsv" | "tab" => Some(Format::Tsv),
            "jsonl" | "ndjson" => Some(Format::Jsonl),
            _ => None,
        }
    }
}

/// A key and its value, with their first line.
pub(super) struct Entry {
    pub(super) line: u64,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// An error in a file, with its line.
pub(super) struct Fault {
    /// The line, counted from 1.
    pub(super) line: u64,
    pub(super) text: String,
}

/// A reader that returns entries one after the other.
pub(super) struct Input {
    reader: BufReader<Box<dyn Read>>,
    /// `None` reads JSON lines.
    fields: Option<Box<Reader>>,
    /// `None` until the header was read.
    columns: Option<Columns>,
    /// Bytes used so far.
    pub(super) position: u64,
    /// Ends of lines among them.
    lines: u64,
}

/// The fields of one record.
type Fields = Vec<Vec<u8>>;

/// The columns of key and value, with the number of columns.
#[derive(Clone, Copy)]
struct Columns {
    key: usize,
    value: usize,
    count: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Option<String>,
    key_hex: Option<String>,
    value: Option<String>,
    value_hex: Option<String>,
}

/// Opens a file, or standard input for `-`. Also returns the file's length, where it has one.
pub(super) fn open(file: &Path) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    let failed = |error: io::Error| Failure::missing(file, &error);
    if file.as_os_str() == "-" {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let opened = File::open(file).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Failure::Path(format!("{} is a directory: name a file to read", file.display())));
    }
    Ok((Box::new(opened), metadata.is_file().then_some(metadata.len())))
}

impl Input {
    /// Returns the reader of a file with this format.
    pub(super) fn new(reader: Box<dyn Read>, format: Format, has_header: bool) -> Input {
        let mut builder = ReaderBuilder::new();
        if format == Format::Tsv {
            builder.delimiter(b'\t').quoting(false);
        }
        Input {
            reader: BufReader::with_capacity(256 << 10, reader),
            fields: (format != Format::Jsonl).then(|| Box::new(builder.build())),
            columns: (!has_header).then_some(Columns { key: 0, value: 1, count: 2 }),
            position: 0,
            lines: 0,
        }
    }

    /// Returns the next entry; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, Fault> {
        let Some(mut parser) = self.fields.take() else { return self.next_of_json() };
        let record = self.record(&mut parser);
        self.fields = Some(parser);
        let Some((line, record)) = record? else { return Ok(None) };
        if let Some(columns) = self.columns {
            return entry(record, columns, line).map(Some);
        }
        self.columns = Some(named(&record).map_err(|text| Fault { line, text })?);
        self.next()
    }

    /// Returns the fields of the next record, and its first line.
    fn record(&mut self, parser: &mut Reader) -> Result<Option<(u64, Fields)>, Fault> {
        self.skip_empty_lines().map_err(|error| self.fault(error.to_string()))?;
        let (start, line) = (self.position, self.lines + 1);
        let (mut fields, mut field, mut buffer) = (Vec::new(), Vec::new(), [0; 4096]);
        loop {
            let input = self.reader.fill_buf().map_err(|error| Fault { line, text: error.to_string() })?;
            let is_end = input.is_empty();
            // The end of the file is that of its last line, unless a quoted field takes it.
            let (result, used, filled) =
                parser.read_field(if is_end { &b"\n"[..] } else { input }, &mut buffer);
            if !is_end {
                self.lines += ends_of_lines(&input[..used]);
                self.reader.consume(used);
                self.position += used as u64;
            }
            if self.position - start > RECORD_BYTES_MAX {
                return Err(Fault { line, text: too_long() });
            }
            field.extend_from_slice(&buffer[..filled]);
            match result {
                ReadFieldResult::InputEmpty if is_end && filled > 0 => {
                    return Err(Fault { line, text: "a quoted field has no end".to_owned() });
                }
                ReadFieldResult::InputEmpty if is_end => return Ok(None),
                ReadFieldResult::InputEmpty | ReadFieldResult::OutputFull => {}
                ReadFieldResult::Field { record_end } => {
                    fields.push(std::mem::take(&mut field));
                    if record_end {
                        return Ok(Some((line, fields)));
                    }
                }
                ReadFieldResult::End => return Ok(None),
            }
        }
    }

    /// Skips input that the parser would skip, too, but would not count: empty lines, and the rest of an end of
    /// line of two bytes.
    fn skip_empty_lines(&mut self) -> io::Result<()> {
        loop {
            let input = self.reader.fill_buf()?;
            let count = input.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            let is_over = count < input.len() || input.is_empty();
            self.lines += ends_of_lines(&input[..count]);
            self.position += count as u64;
            self.reader.consume(count);
            if is_over {
                return Ok(());
            }
        }
    }

    fn next_of_json(&mut self) -> Result<Option<Entry>, Fault> {
        let mut text = Vec::new();
        while text.trim_ascii().is_empty() {
            text.clear();
            let read = (&mut self.reader).take(RECORD_BYTES_MAX + 1).read_until(b'\n', &mut text);
            match read.map_err(|error| self.fault(error.to_string()))? as u64 {
                0 => return Ok(None),
                count if count > RECORD_BYTES_MAX => return Err(self.fault(too_long())),
                count => self.position += count,
            }
            self.lines += 1;
            // Editors add a byte order mark, which the parser of CSV and TSV passes over.
            if self.lines == 1 && text.starts_with(b"\xef\xbb\xbf") {
                text.drain(..3);
            }
        }
        let line = self.lines;
        let fault = |text: String| Fault { line, text };
        let found: Line = serde_json::from_slice(&text).map_err(|error| fault(of_json(&error)))?;
        let key = field("key", found.key, found.key_hex).map_err(fault)?;
        let value = field("value", found.value, found.value_hex).map_err(fault)?;
        Ok(Some(Entry { line, key, value }))
    }

    /// Returns an error in the line that was about to be read.
    fn fault(&self, text: String) -> Fault {
        Fault { line: self.lines + 1, text }
    }
}

fn ends_of_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Finds the columns that a header names.
fn named(header: &[Vec<u8>]) -> Result<Columns, String> {
    let place = |name: &str| {
        let mut places = header.iter().enumerate().filter(|(_, field)| field.trim_ascii() == name.as_bytes());
        match (places.next(), places.next()) {
            (Some((place, _)), None) => Ok(place),
            (None, _) => Err(format!("the header names no column {name:?}")),
            _ => Err(format!("the header names two columns {name:?}")),
        }
    };
    Ok(Columns { key: place("key")?, value: place("value")?, count: header.len() })
}

fn entry(mut record: Fields, columns: Columns, line: u64) -> Result<Entry, Fault> {
    let (found, count) = (record.len(), columns.count);
    if found != count {
        let text = match count {
            2 => format!("{found} fields, where a line has 2: key and value"),
            _ => format!("{found} fields, where the header names {count} columns"),
        };
        return Err(Fault { line, text });
    }
    let mut take = |column: usize| std::mem::take(&mut record[column]);
    Ok(Entry { line, key: take(columns.key), value: take(columns.value) })
}

fn field(name: &str, text: Option<String>, hex: Option<String>) -> Result<Vec<u8>, String> {
    match (text, hex) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(hex)) => unhex(&hex).ok_or_else(|| format!("{name}_hex is not hexadecimal")),
        (None, None) => Err(format!("no {name:?}")),
        (Some(_), Some(_)) => Err(format!("both {name:?} and \"{name}_hex\"")),
    }
}

fn too_long() -> String {
    format!(
        "longer than {} MiB, the most that one record may have (a value has at most 16 MiB)",
        RECORD_BYTES_MAX >> 20
    )
}

/// Returns the message without its position. The position's line is always the first of the text parsed.
fn of_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    format!("{message} (column {})", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entries = Vec<(u64, Vec<u8>, Vec<u8>)>;

    fn read(text: &'static [u8], format: Format, has_header: bool) -> Result<Entries, (u64, String)> {
        let mut input = Input::new(Box::new(text), format, has_header);
        let mut entries = Vec::new();
        while let Some(entry) = input.next().map_err(|fault| (fault.line, fault.text))? {
            entries.push((entry.line, entry.key, entry.value));
        }
        assert_eq!(input.position, text.len() as u64);
        Ok(entries)
    }

    fn entry(line: u64, key: &[u8], value: &[u8]) -> (u64, Vec<u8>, Vec<u8>) {
        (line, key.to_vec(), value.to_vec())
    }

    #[test]
    fn csv_has_quotes_and_headers() {
        let text = b"a,1\n\"b,\"\"c\",\"two\nlines\"\n\n\xff,\n";
        let found = read(text, Format::Csv, false);
        assert_eq!(
            found,
            Ok(vec![entry(1, b"a", b"1"), entry(2, b"b,\"c", b"two\nlines"), entry(5, b"\xff", b"")])
        );
        let found = read(b"id,value,key\r\n7,v,k\r\n\r\n8,\"w\r\n\",l", Format::Csv, true);
        assert_eq!(found, Ok(vec![entry(2, b"k", b"v"), entry(4, b"l", b"w\r\n")]));
        assert_eq!(read(b"", Format::Csv, false), Ok(Vec::new()));
        assert_eq!(read(b"\xef\xbb\xbf", Format::Csv, false), Ok(Vec::new()), "an editor's mark alone");
        for text in [&b"a,\"1\""[..], b"a,\"1\"\r", b"a,1", b"\xef\xbb\xbfa,1"] {
            assert_eq!(read(text, Format::Csv, false), Ok(vec![entry(1, b"a", b"1")]), "{text:?}");
        }
    }

    #[test]
    fn tsv_is_taken_as_it_is() {
        let found = read(b"a\t\"1\nb\t\n", Format::Tsv, false);
        assert_eq!(found, Ok(vec![entry(1, b"a", b"\"1"), entry(2, b"b", b"")]));
    }

    #[test]
    fn json_lines_take_text_and_hexadecimal() {
        let text = b"{\"key\":\"a\\u0000\",\"value\":\"\"}\n\n{\"key_hex\":\"ff\",\"value_hex\":\"00\"}";
        let found = read(text, Format::Jsonl, false);
        assert_eq!(found, Ok(vec![entry(1, b"a\0", b""), entry(3, b"\xff", b"\0")]));
        // A mark may be all of a line.
        assert_eq!(read(b"\xef\xbb\xbf", Format::Jsonl, false), Ok(Vec::new()));
        let found = read(b"\xef\xbb\xbf\r\n{\"key\":\"a\",\"value\":\"1\"}\n", Format::Jsonl, false);
        assert_eq!(found, Ok(vec![entry(2, b"a", b"1")]));
    }

    #[test]
    fn wrong_input_is_reported_with_its_line() {
        let cases: [(&'static [u8], Format, bool, u64, &str); 11] = [
            (b"a,1\nb\n", Format::Csv, false, 2, "1 fields, where a line has 2: key and value"),
            (b"a,1\nb,2,3\n", Format::Csv, false, 2, "3 fields"),
            // Regression: a quote that nothing closes was reported one line too early, and line 0 at the start.
            (b"a,1\n\"b,2\n", Format::Csv, false, 2, "a quoted field has no end"),
            (b"\"", Format::Csv, false, 1, "a quoted field has no end"),
            (b"a,1\nb,\"2\"\"", Format::Csv, false, 2, "a quoted field has no end"),
            (b"id,value\n", Format::Csv, true, 1, "the header names no column \"key\""),
            (b"key\tvalue\tid\na\tb\n", Format::Tsv, true, 2, "the header names 3 columns"),
            (b"{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\n", Format::Jsonl, false, 2, "EOF while parsing"),
            (b"{\"key\":\"a\"}\n", Format::Jsonl, false, 1, "no \"value\""),
            (b"{\"key\":\"a\",\"value\":1}\n", Format::Jsonl, false, 1, "expected a string"),
            (b"{\"key_hex\":\"g\",\"value\":\"\"}\n", Format::Jsonl, false, 1, "key_hex is not hexadecimal"),
        ];
        for (text, format, has_header, line, part) in cases {
            let (found, words) = read(text, format, has_header).expect_err("it is wrong");
            assert!(found == line && words.contains(part), "line {found}: {words}");
        }
    }

    /// Regression: a line was read into memory at any length, and a line of 400 MB used 1.6 GB.
    #[test]
    fn a_record_that_is_too_long_ends_the_load_where_it_begins() {
        let begins: [(Format, &'static [u8]); 4] = [
            (Format::Csv, b"a,1\n\nb,2\n\n"),
            (Format::Csv, b"a,1\n\nb,2\n\n\"c"),
            (Format::Tsv, b"a\t1\n\nb\t2\n\n"),
            (Format::Jsonl, b"{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key\":\"b\",\"value\":\"2\"}\n\n"),
        ];
        for (format, begin) in begins {
            let long = io::repeat(b'x').take(RECORD_BYTES_MAX * 2);
            let mut input = Input::new(Box::new(begin.chain(long)), format, false);
            for _ in 0..2 {
                assert!(input.next().is_ok_and(|entry| entry.is_some()), "{format:?}");
            }
            let fault = input.next().err().expect("a record that is too long");
            assert!(fault.text.starts_with("longer than 40 MiB"), "{format:?}: {}", fault.text);
            assert_eq!(fault.line, 5, "{format:?}");
            // The bytes read are little more than the limit.
            assert!(input.position < RECORD_BYTES_MAX + (1 << 20), "{}", input.position);
        }
    }

    #[test]
    fn a_record_as_long_as_one_may_be_is_read() {
        for (format, begin, end) in [
            (Format::Csv, &b"a,"[..], &b"\n"[..]),
            (Format::Jsonl, &b"{\"key\":\"a\",\"value\":\""[..], &b"\"}\n"[..]),
        ] {
            let fill = RECORD_BYTES_MAX - (begin.len() + end.len()) as u64;
            for (more, is_read) in [(0, true), (1, false)] {
                let text = begin.chain(io::repeat(b'x').take(fill + more)).chain(end);
                let entry = Input::new(Box::new(text), format, false).next();
                assert_eq!(entry.is_ok(), is_read, "{format:?}: {more} more");
            }
        }
    }
}
