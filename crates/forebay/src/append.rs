//! placeholder
use crate::file::File;
/// x
#[derive(Debug)] pub struct AppendBuilder(File);
/// x
#[derive(Debug)] pub struct Append;
impl AppendBuilder { pub(crate) fn new(file: File) -> Self { AppendBuilder(file) } }
