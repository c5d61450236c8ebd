//! `forebay top`: the activity of a running engine, read from its statistics socket.

mod client;
mod screen;
mod snapshot;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::output::{print, stderr_line};
use client::Client;
use forebay_measure::cleanup::Cleanup;
use forebay_report::failure::Failure;
use screen::Screen;
use snapshot::Snapshot;

/// Options of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The socket that the program's engine serves (`Engine::serve_stats`).
    socket: PathBuf,
    /// Show one interval and end.
    #[arg(long)]
    once: bool,
    /// Print the engine's statistics, one line of JSON for each interval; with --once one line immediately.
    #[arg(long)]
    json: bool,
    /// Seconds from one update to the next.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("{text:?} is no interval; write seconds from 0.05 to 3600, such as 0.5 or 10")),
    }
}

/// Shows the engine until it ends, or once.
///
/// # Errors
/// No engine serves the socket, or not for this user: a [`Failure`]; or its statistics are not understood.
pub(crate) fn run(args: &TopArgs, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let mut client = Client::connect(&args.socket)?;
    if args.json {
        return run_json(args, &mut client);
    }
    let ended = || Failure::Path(format!("the engine of {} ended", args.socket.display()));
    let mut before = Snapshot::parse(&client.request()?.ok_or_else(ended)?)?;
    let screen = if args.once { None } else { Screen::open(cleanup)? };
    if let Some(screen) = &screen {
        screen.show(&view::render(&before, None, screen.size()))?;
    }
    while client.wait(args.interval)? {
        let Some(line) = client.request()? else { break };
        let now = Snapshot::parse(&line)?;
        match &screen {
            Some(screen) => screen.show(&view::render(&now, Some(&before), screen.size()))?,
            None => print(&view::render(&now, Some(&before), view::Size::default()))?,
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
    drop(screen);
    if args.once {
        return Err(ended().into());
    }
    stderr_line(format_args!("the engine of {} ended", args.socket.display()));
    Ok(ExitCode::SUCCESS)
}

fn run_json(args: &TopArgs, client: &mut Client) -> anyhow::Result<ExitCode> {
    while let Some(line) = client.request()? {
        // Only lines that parse as statistics are passed on.
        Snapshot::parse(&line)?;
        print(&line)?;
        if args.once || !client.wait(args.interval)? {
            break;
        }
    }
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
