//! The tables of TPC-H as parquet files.

use std::fs::{self, File};
use std::path::Path;

use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::Result;

/// Writes all tables into the new directory `dir`: lineitem in 16 files, orders and partsupp in 4, the others in one each.
pub(crate) fn make(dir: &Path, scale: f64) -> Result<()> {
    // Fails if it exists: its files may be another program's.
    fs::create_dir(dir).map_err(|error| format!("{}: {error}; name a new directory", dir.display()))?;
    many(dir, "lineitem", 16, |part, parts| LineItemArrow::new(LineItemGenerator::new(scale, part, parts)))?;
    many(dir, "orders", 4, |part, parts| OrderArrow::new(OrderGenerator::new(scale, part, parts)))?;
    many(dir, "partsupp", 4, |part, parts| PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts)))?;
    many(dir, "part", 1, |part, parts| PartArrow::new(PartGenerator::new(scale, part, parts)))?;
    many(dir, "customer", 1, |part, parts| CustomerArrow::new(CustomerGenerator::new(scale, part, parts)))?;
    many(dir, "supplier", 1, |part, parts| SupplierArrow::new(SupplierGenerator::new(scale, part, parts)))?;
    many(dir, "nation", 1, |part, parts| NationArrow::new(NationGenerator::new(scale, part, parts)))?;
    many(dir, "region", 1, |part, parts| RegionArrow::new(RegionGenerator::new(scale, part, parts)))
}

fn many<I>(dir: &Path, table: &str, parts: i32, batches: impl Fn(i32, i32) -> I) -> Result<()>
where
    I: Iterator<Item = std::result::Result<RecordBatch, ArrowError>>,
{
    fs::create_dir(dir.join(table))?;
    for part in 1..=parts {
        let path = dir.join(table).join(format!("part-{part:02}.parquet"));
        write(&path, batches(part, parts)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Writes a file as pyarrow and Spark do by default: Snappy, and row groups of a million rows.
fn write(
    path: &Path,
    batches: impl Iterator<Item = std::result::Result<RecordBatch, ArrowError>>,
) -> Result<()> {
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let (mut file, mut writer) = (Some(File::create_new(path)?), None);
    for batch in batches {
        let batch = batch?;
        if let Some(file) = file.take() {
            writer = Some(ArrowWriter::try_new(file, batch.schema(), Some(properties.clone()))?);
        }
        if let Some(writer) = &mut writer {
            writer.write(&batch)?;
        }
    }
    // Synced: the page cache drops clean pages only.
    if let Some(writer) = writer {
        writer.into_inner()?.sync_all()?;
    }
    Ok(())
}
