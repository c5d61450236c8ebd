//! Compiles the messages and services of `proto`, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["rpc.proto", "peer.proto", "lock.proto", "election.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".mvccpb.KeyValue")
        // Outcomes are the responses of a Raft state machine, which must be so.
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .compile_fds(files)?;
    Ok(())
}
