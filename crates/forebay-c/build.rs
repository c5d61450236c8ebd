//! Names the shared library as programs load it: while the version is 0.x, each minor version has a different name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        let [major, minor] = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")];
        let name =
            if major == "0" { format!("libforebay.so.0.{minor}") } else { format!("libforebay.so.{major}") };
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}");
    }
}
