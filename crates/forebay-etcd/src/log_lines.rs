//! [`JsonLines`]: the log as etcd writes it.

use std::fmt::{self, Debug, Write};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Log events as lines of JSON, with the names of etcd's fields: `level`, `ts`, `caller`, `msg`, and those of the event.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonLines;

#[derive(Default)]
struct Fields {
    message: String,
    /// Each with a comma before it.
    others: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        // Nothing fails that is written to a string.
        let _ = write!(self.others, ",{}:{value}", Value::from(field.name()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.add(field, Value::from(format!("{value:?}"))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, Value::from(value)),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Value::from(value));
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (metadata, mut fields) = (event.metadata(), Fields::default());
        event.record(&mut fields);
        write!(writer, "{{\"level\":\"{}\",\"ts\":\"", metadata.level().as_str().to_lowercase())?;
        SystemTime.format_time(&mut writer)?;
        // The last folder and the file, as etcd has them.
        let file = metadata.file().unwrap_or_default();
        let start = file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
        let caller = format!("{}:{}", &file[start..], metadata.line().unwrap_or_default());
        let (caller, message) = (Value::from(caller), Value::from(fields.message));
        writeln!(writer, "\",\"caller\":{caller},\"msg\":{message}{}}}", fields.others)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            io::Write::write(&mut *self.0.lock().unwrap(), bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// `--log-format json`, etcd's default, was accepted, and the log was text, which collectors of logs do not read.
    #[test]
    fn each_event_is_a_line_of_json() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().event_format(JsonLines);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(member = "m\"1", waited_ms = 7_u64, is_new = true, urls = ?["a"], "a {}\nmessage", 1);
            tracing::info!("second");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [first, second] = &found[..] else { panic!("{text}") };
        assert_eq!((&first["level"], &first["msg"]), (&Value::from("warn"), &Value::from("a 1\nmessage")));
        assert_eq!((&first["member"], &first["waited_ms"]), (&Value::from("m\"1"), &Value::from(7)));
        assert_eq!((&first["is_new"], &first["urls"]), (&Value::from(true), &Value::from("[\"a\"]")));
        let caller = first["caller"].as_str().unwrap();
        assert!(caller.starts_with("src/log_lines.rs:"), "{caller}");
        assert!(first["ts"].as_str().unwrap().ends_with('Z'), "{first}");
        assert_eq!((&second["level"], &second["msg"]), (&Value::from("info"), &Value::from("second")));
    }
}
