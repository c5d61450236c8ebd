//! The server's program.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use forebay_etcd::{Config, EndReason, Invocation, JsonLines, Server};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(sentence) => {
            // No other place can report this failure.
            let _ = writeln!(std::io::stderr(), "forebay-etcd: {sentence}");
            ExitCode::FAILURE
        }
    }
}

type Variables = Vec<(String, String)>;

/// Returns the command line, and the variables of the environment that may be settings.
fn given() -> Result<(Vec<String>, Variables), String> {
    let text = |text: OsString| text.into_string().map_err(|text| format!("{text:?} is not UTF-8"));
    let mut variables = Variables::new();
    for (name, value) in std::env::vars_os() {
        // Those of other programs may be any bytes.
        let Some(name) = name.to_str().filter(|name| name.starts_with("ETCD_")) else { continue };
        let value = text(value).map_err(|error| format!("the variable {name} cannot be used: {error}"))?;
        variables.push((name.to_owned(), value));
    }
    let arguments = std::env::args_os().map(text).collect::<Result<Vec<_>, String>>();
    Ok((arguments.map_err(|error| format!("the command line cannot be used: {error}"))?, variables))
}

fn run() -> Result<ExitCode, String> {
    let (arguments, variables) = given()?;
    let config = match Config::parse(arguments, variables).map_err(|error| error.to_string())? {
        Invocation::Serve(config) => *config,
        Invocation::Restore(restore) => {
            // The engine's own threads do the work.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| format!("the threads cannot be started: {error}"))?;
            let restored = runtime.block_on(restore.run()).map_err(|error| error.to_string())?;
            let _ = writeln!(std::io::stdout(), "{restored}");
            return Ok(ExitCode::SUCCESS);
        }
        Invocation::Print(text) => {
            let _ = write!(std::io::stdout(), "{text}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    raise_file_limit();
    let level = config.log_level();
    // Raft has a line for every message at these levels, and at the lower one for every message that is not delivered.
    let raft = match level {
        "debug" => "info",
        "error" => "error",
        _ => {
            "warn,openraft::core::heartbeat=error,openraft::replication=error,\
             openraft::engine::handler::replication_handler=error"
        }
    };
    let filter = format!("{level},openraft={raft}");
    let log = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(false);
    if config.is_log_json() {
        log.event_format(JsonLines).init();
    } else {
        log.init();
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the threads cannot be started: {error}"))?;
    let ended = runtime.block_on(serve(config));
    // Requests that have not ended by now are given up.
    runtime.shutdown_background();
    ended
}

/// Lets this process have as many files open as the system allows, as programs in Go do: each connection of a client is one.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is refused, the limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
}

async fn serve(config: Config) -> Result<ExitCode, String> {
    let failed = |error: std::io::Error| format!("signals cannot be received: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let server = tokio::select! {
        server = Server::start(config) => server.map_err(|error| error.to_string())?,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    let reason = tokio::select! {
        reason = server.ended() => Some(reason),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    tokio::select! {
        () = server.shutdown() => {}
        // A second signal ends it immediately: the next start recovers.
        _ = terminate.recv() => return Err("ended at the second signal, before everything was closed".to_owned()),
        _ = interrupt.recv() => return Err("ended at the second signal, before everything was closed".to_owned()),
    }
    match reason {
        None => Ok(ExitCode::SUCCESS),
        // As etcd does: a supervisor need not start it again.
        Some(reason @ EndReason::Removed) => {
            let _ = writeln!(std::io::stderr(), "forebay-etcd: {reason}");
            Ok(ExitCode::SUCCESS)
        }
        Some(reason) => Err(reason.to_string()),
    }
}
