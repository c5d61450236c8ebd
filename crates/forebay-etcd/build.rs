//! Compiles the messages and services of `proto`, without protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    let files = ["rpc.proto", "peer.proto", "lock.proto", "election.proto", "health.proto"];
    compiler.include_imports(true).open_files(files)?;
    // Without comments, which documentation alone needs.
    let descriptors = Path::new(&std::env::var("OUT_DIR")?).join("descriptors.bin");
    std::fs::write(descriptors, compiler.encode_file_descriptor_set())?;
    let files = compiler.include_source_info(true).file_descriptor_set();
    tonic_prost_build::configure()
        .bytes(".mvccpb.KeyValue")
        // Outcomes are the responses of a Raft state machine, which must be so.
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .compile_fds(files)?;
    Ok(())
}
