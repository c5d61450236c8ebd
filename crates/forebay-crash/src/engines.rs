//! Databases of RocksDB and WiredTiger whose files are those of `libforebay`.
//!
//! A program of their tests runs each. It compares the contents with the results of as many operations as the database says that it
//! has had, and prints that number; then the number after each flush.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::subject::{self, Say, Writer, number};

/// The guest's half: a program that goes on with each line that it reads, and ends with its input.
struct Database {
    program: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    errors: PathBuf,
}

impl Database {
    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        if self.output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            return Ok(line.trim_end().to_owned());
        }
        let text = std::fs::read_to_string(&self.errors).unwrap_or_default();
        Err(format!("the program ended: {:?}: {}", self.program.wait(), text.trim_end()))
    }
}

/// Starts the program, which opens the database and checks it.
pub(crate) fn recover(name: &str, dir: &Path, life: u64, say: Say<'_>) -> Result<Box<dyn Writer>, String> {
    let errors = Path::new("/tmp").join(dir.to_string_lossy().replace('/', "-"));
    let log = File::create(&errors).map_err(|error| format!("{}: {error}", errors.display()))?;
    let mut command = Command::new(name);
    command
        .arg("--serve")
        .arg(dir)
        .arg(life.to_string())
        .env("FOREBAY_WIREDTIGER", "/vm/libforebay_wiredtiger.so")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut program = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let (Some(input), Some(output)) = (program.stdin.take(), program.stdout.take()) else {
        return Err("a program without pipes".into());
    };
    let mut database = Database { program, input, output: BufReader::new(output), errors };
    say(&database.line().map_err(|error| format!("opening: {error}"))?);
    Ok(Box::new(database))
}

impl Writer for Database {
    fn write(mut self: Box<Self>, _: u64, say: Say<'_>) -> Result<(), String> {
        loop {
            // Of a program that has ended, the next line says why.
            let _gone = self.input.write_all(b"\n");
            if !say(&self.line()?) {
                return Ok(());
            }
        }
    }
}

/// The host's half.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// The number of operations that a flush or a recovery has made durable.
    durable: u64,
    flushes: u64,
}

impl subject::Model for Model {
    fn began(&mut self, _: u64) {}

    fn hear(&mut self, words: &[&str]) -> Result<(), String> {
        let count = number(words, 1)?;
        match words[0] {
            "ack" => self.flushes += 1,
            "has" if count >= self.durable => {}
            "has" => {
                return Err(format!("it has {count} operations, and {} were acknowledged", self.durable));
            }
            _ => return Err(format!("the guest said something that is not a line: {}", words.join(" "))),
        }
        self.durable = count;
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.flushes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::hear;

    #[test]
    fn flushed_and_recovered_operations_stay() {
        let mut model = Model::default();
        hear(&mut model, &["has 0", "ack 3", "ack 7", "has 7", "has 9"]).expect("two more than were flushed");
        hear(&mut model.clone(), &["has 8"]).expect_err("a recovery has shown nine");
        hear(&mut model, &["ack 12"]).expect("three more");
        hear(&mut model, &["has 11"]).expect_err("the twelfth was flushed");
    }
}
