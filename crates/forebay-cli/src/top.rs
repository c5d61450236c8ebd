//! `forebay top`: the activity of a running engine, read from its statistics socket.

mod client;
mod exposition;
mod screen;
mod view;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::output::{Destination, JsonArgs, print, print_raw, stderr_line};
use forebay_measure::cleanup::Cleanup;
use forebay_report::failure::Failure;
use screen::Screen;

/// Options of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The socket that the program's engine serves (`Engine::serve_stats`).
    socket: PathBuf,
    /// Show one interval and end; with --json print one line immediately.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    json: JsonArgs,
    /// Seconds from one update to the next.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("{text:?} is not an interval; write seconds from 0.05 to 3600, such as 0.5 or 10")),
    }
}

/// Shows the engine until it ends, or once.
///
/// # Errors
/// No engine serves the socket, or not for this user: a [`Failure`]; or its statistics are not understood.
pub(crate) fn run(args: &TopArgs, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let mut page = client::request(&args.socket)?;
    let lines = args.json.lines(Some(exposition::MARK))?;
    let (mut before, mut screen, mut file) = (None::<Value>, None, None);
    while let Some(text) = page {
        // Only texts that parse as statistics are passed on.
        let now = exposition::parse(&text)?;
        if before.as_ref().is_some_and(|before| before["pid"] != now["pid"]) {
            break;
        }
        let line = exposition::line(&now);
        if before.is_none() {
            file = lines.as_ref().map(Destination::create).transpose()?;
        }
        if let Some(file) = &mut file {
            file.write_all(line.as_bytes())?;
        }
        if before.is_none() && !args.once && !args.json.is_stdout() {
            screen = Screen::open(cleanup)?;
        }
        match &screen {
            _ if args.json.is_stdout() => print_raw(&line)?,
            Some(screen) => screen.show(&view::render(&now, before.as_ref(), screen.size()))?,
            // Without a screen, a table without rates is of no use.
            None if before.is_none() => {}
            None => print(&view::render(&now, before.as_ref(), view::Size::default()))?,
        }
        if args.once && (before.is_some() || args.json.is_stdout()) {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some(now);
        match &screen {
            Some(screen) if screen.quits_within(args.interval) => return Ok(ExitCode::SUCCESS),
            Some(_) => {}
            None => std::thread::sleep(args.interval),
        }
        page = match client::request(&args.socket) {
            // The socket disappeared with the engine.
            Err(error) if error.is::<Failure>() => None,
            page => page?,
        };
    }
    drop(screen);
    let mut ended = format!("the engine of {} ended", args.socket.display());
    if before.is_none() {
        ended += ", or it is of an earlier release: use the program of that release";
    }
    if args.once || before.is_none() {
        return Err(Failure::Path(ended).into());
    }
    stderr_line(ended);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "x", "NaN", "inf", "4000", ""] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }
}
