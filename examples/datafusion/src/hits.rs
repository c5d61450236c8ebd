//! Data of the shape of ClickBench's table `hits`: the same columns and types, about the same widths and numbers of values, and
//! files, row groups and an order of rows like those of the public parquet files.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Date32Array, Int16Array, Int32Array, Int64Array, StringArray, TimestampMillisecondArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;

use crate::Result;

const FILE_ROWS: u64 = 1_000_000;
const GROUP_ROWS: u64 = 500_000;
const BATCH_ROWS: u64 = 20_000;
/// Those of the public table. The numbers of values below are of so many rows.
const PUBLIC_ROWS: u64 = 100_000_000;
/// Days from 1970 to 1 July 2013, when the hits begin, and the days of these.
const JULY: i32 = 15_887;
const DAYS: u64 = 31;

/// What a column has. Small numbers are the most frequent ones.
#[derive(Clone, Copy)]
enum Kind {
    /// So many values of 16, 32 and 64 bits.
    Small(u64),
    Int(u64),
    Long(u64),
    /// So many texts and addresses, of so many bytes on average, in so many of a thousand rows; others are empty.
    Text(u64, u64, u64),
    Address(u64, u64, u64),
    /// The hash of an address: one that queries ask for in a part of the hits of their counter.
    Hash(i64),
    Time,
    Date,
    Counter,
    User,
}

use Kind::{Address, Counter, Date, Hash, Int, Long, Small, Text, Time, User};

const COLUMNS: [(&str, Kind); 105] = [
    ("WatchID", Long(PUBLIC_ROWS)),
    ("JavaEnable", Small(2)),
    ("Title", Text(9_000_000, 90, 850)),
    ("GoodEvent", Small(1)),
    ("EventTime", Time),
    ("EventDate", Date),
    ("CounterID", Counter),
    ("ClientIP", Int(10_000_000)),
    ("RegionID", Int(9_000)),
    ("UserID", User),
    ("CounterClass", Small(2)),
    ("OS", Small(90)),
    ("UserAgent", Small(80)),
    ("URL", Address(18_000_000, 85, 1_000)),
    ("Referer", Address(19_000_000, 85, 810)),
    ("IsRefresh", Small(2)),
    ("RefererCategoryID", Small(100)),
    ("RefererRegionID", Int(2_000)),
    ("URLCategoryID", Small(100)),
    ("URLRegionID", Int(2_000)),
    ("ResolutionWidth", Small(2_000)),
    ("ResolutionHeight", Small(1_500)),
    ("ResolutionDepth", Small(30)),
    ("FlashMajor", Small(12)),
    ("FlashMinor", Small(10)),
    ("FlashMinor2", Text(150, 4, 400)),
    ("NetMajor", Small(5)),
    ("NetMinor", Small(5)),
    ("UserAgentMajor", Small(60)),
    ("UserAgentMinor", Text(500, 2, 950)),
    ("CookieEnable", Small(2)),
    ("JavascriptEnable", Small(2)),
    ("IsMobile", Small(2)),
    ("MobilePhone", Small(80)),
    ("MobilePhoneModel", Text(170, 6, 60)),
    ("Params", Text(1_000_000, 20, 20)),
    ("IPNetworkID", Int(500_000)),
    ("TraficSourceID", Small(10)),
    ("SearchEngineID", Small(90)),
    ("SearchPhrase", Text(6_000_000, 35, 130)),
    ("AdvEngineID", Small(20)),
    ("IsArtifical", Small(2)),
    ("WindowClientWidth", Small(2_000)),
    ("WindowClientHeight", Small(1_500)),
    ("ClientTimeZone", Small(30)),
    ("ClientEventTime", Time),
    ("SilverlightVersion1", Small(6)),
    ("SilverlightVersion2", Small(3)),
    ("SilverlightVersion3", Int(70_000)),
    ("SilverlightVersion4", Small(3)),
    ("PageCharset", Text(50, 7, 950)),
    ("CodeVersion", Int(2_000)),
    ("IsLink", Small(2)),
    ("IsDownload", Small(2)),
    ("IsNotBounce", Small(2)),
    ("FUniqID", Long(15_000_000)),
    ("OriginalURL", Address(5_000_000, 85, 100)),
    ("HID", Int(90_000_000)),
    ("IsOldCounter", Small(1)),
    ("IsEvent", Small(2)),
    ("IsParameter", Small(2)),
    ("DontCountHits", Small(2)),
    ("WithHash", Small(2)),
    ("HitColor", Text(5, 1, 1_000)),
    ("LocalEventTime", Time),
    ("Age", Small(60)),
    ("Sex", Small(3)),
    ("Income", Small(5)),
    ("Interests", Small(10_000)),
    ("Robotness", Small(4)),
    ("RemoteIP", Int(10_000_000)),
    ("WindowName", Int(20_000)),
    ("OpenerName", Int(20_000)),
    ("HistoryLength", Small(200)),
    ("BrowserLanguage", Text(100, 2, 1_000)),
    ("BrowserCountry", Text(200, 2, 1_000)),
    ("SocialNetwork", Text(10, 8, 5)),
    ("SocialAction", Text(10, 8, 5)),
    ("HTTPError", Small(1)),
    ("SendTiming", Int(60_000)),
    ("DNSTiming", Int(60_000)),
    ("ConnectTiming", Int(60_000)),
    ("ResponseStartTiming", Int(90_000)),
    ("ResponseEndTiming", Int(90_000)),
    ("FetchTiming", Int(90_000)),
    ("SocialSourceNetworkID", Small(30)),
    ("SocialSourcePage", Address(100_000, 60, 5)),
    ("ParamPrice", Long(10_000)),
    ("ParamOrderID", Text(100_000, 10, 5)),
    ("ParamCurrency", Text(5, 3, 1_000)),
    ("ParamCurrencyID", Small(5)),
    ("OpenstatServiceName", Text(20, 12, 40)),
    ("OpenstatCampaignID", Text(30_000, 8, 40)),
    ("OpenstatAdID", Text(300_000, 9, 40)),
    ("OpenstatSourceID", Text(20_000, 16, 40)),
    ("UTMSource", Text(5_000, 10, 60)),
    ("UTMMedium", Text(500, 5, 60)),
    ("UTMCampaign", Text(20_000, 14, 60)),
    ("UTMContent", Text(50_000, 14, 30)),
    ("UTMTerm", Text(200_000, 20, 30)),
    ("FromTag", Text(5_000, 8, 10)),
    ("HasGCLID", Small(2)),
    ("RefererHash", Hash(3_594_120_000_172_545_465)),
    ("URLHash", Hash(2_868_770_270_353_813_622)),
    ("CLID", Int(100_000)),
];

const SYLLABLES: [&str; 32] = [
    "ka", "ro", "mi", "ten", "lo", "sa", "vi", "nor", "de", "pu", "gal", "he", "ri", "so", "tu", "ba", "len",
    "fi", "mo", "za", "ker", "di", "no", "wa", "shi", "po", "ge", "lu", "tra", "bi", "an", "ost",
];

/// Writes the table of so many rows into the new directory `dir`, a file for each million.
pub(crate) fn make(dir: &Path, rows: u64) -> Result<()> {
    fs::create_dir(dir).map_err(|error| format!("{}: {error}; name a new directory", dir.display()))?;
    let table = dir.join("hits");
    fs::create_dir(&table)?;
    let fields = COLUMNS.iter().map(|(name, kind)| Field::new(*name, data_type(*kind), false));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    for (number, file_rows) in parts(0..rows, FILE_ROWS).enumerate() {
        let file = File::create_new(table.join(format!("hits_{number:03}.parquet")))?;
        let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties.clone()))?;
        for group in parts(file_rows, GROUP_ROWS) {
            for batch in parts(group, BATCH_ROWS) {
                let columns = COLUMNS.iter().enumerate();
                let columns =
                    columns.map(|(number, (_, kind))| column(number as u64, *kind, batch.clone(), rows));
                writer.write(&RecordBatch::try_new(schema.clone(), columns.collect())?)?;
            }
            // Ends the row group.
            writer.flush()?;
        }
        // Synced: the page cache drops clean pages only.
        writer.into_inner()?.sync_all()?;
    }
    Ok(())
}

/// Divides a range into parts of `len`.
fn parts(range: Range<u64>, len: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(len as usize).map(move |start| start..end.min(start + len))
}

fn data_type(kind: Kind) -> DataType {
    match kind {
        Small(_) => DataType::Int16,
        Int(_) | Counter => DataType::Int32,
        Long(_) | Hash(_) | User => DataType::Int64,
        Text(..) | Address(..) => DataType::Utf8,
        Time => DataType::Timestamp(TimeUnit::Millisecond, None),
        Date => DataType::Date32,
    }
}

/// Returns rows of a column of a table that has `total` rows.
fn column(number: u64, kind: Kind, rows: Range<u64>, total: u64) -> ArrayRef {
    let drawn = rows.clone().map(move |row| mix(row ^ number << 48));
    // As many rows for each value as in the public table.
    let scaled = |values: u64| {
        if values < 100_000 { values } else { (values * total / PUBLIC_ROWS).max(1) }
    };
    match kind {
        Small(values) => {
            Arc::new(Int16Array::from_iter_values(drawn.map(|drawn| frequent(drawn, values) as i16)))
        }
        Int(values) => {
            let values = scaled(values);
            Arc::new(Int32Array::from_iter_values(drawn.map(|drawn| frequent(drawn, values) as i32)))
        }
        // Each is another one where there are as many as rows.
        Long(PUBLIC_ROWS) => Arc::new(Int64Array::from_iter_values(drawn.map(long))),
        Long(values) => {
            let values = scaled(values);
            Arc::new(Int64Array::from_iter_values(drawn.map(|drawn| long(mix(frequent(drawn, values))))))
        }
        Text(values, bytes, share) => {
            texts(drawn, number, scaled(values), share, |number| text(number, bytes))
        }
        Address(values, bytes, share) => {
            texts(drawn, number, scaled(values), share, |number| address(number, bytes))
        }
        Hash(asked) => Arc::new(Int64Array::from_iter_values(rows.clone().zip(drawn).map(|(row, drawn)| {
            let is_asked = counter(row, total) == ASKED_COUNTER && drawn.is_multiple_of(20);
            if is_asked { asked } else { long(mix(frequent(drawn, scaled(18_000_000)))) }
        }))),
        Time => {
            let times = rows.clone().zip(drawn);
            let times =
                times.map(|(row, drawn)| (i64::from(day(row)) * 86_400 + (drawn % 86_400) as i64) * 1000);
            Arc::new(TimestampMillisecondArray::from_iter_values(times))
        }
        Date => Arc::new(Date32Array::from_iter_values(rows.map(day))),
        Counter => Arc::new(Int32Array::from_iter_values(rows.map(|row| counter(row, total)))),
        User => Arc::new(Int64Array::from_iter_values(rows.clone().zip(drawn).map(|(row, drawn)| {
            // Five hits in a row are of one visitor, and one hit in ten of one of a thousand who come often.
            match row / 5 {
                visit if visit == total / 50 => 435_090_932_899_640_449,
                _ if drawn.is_multiple_of(10) => long(mix(frequent(drawn, 1000))),
                visit => long(mix(visit + 1000)),
            }
        }))),
    }
}

/// Returns texts of so many values of the column `number` in `share` of a thousand rows.
fn texts(
    drawn: impl Iterator<Item = u64>,
    number: u64,
    values: u64,
    share: u64,
    text: impl Fn(u64) -> String,
) -> ArrayRef {
    let texts = drawn.map(|drawn| {
        let is_empty = drawn % 1000 >= share;
        if is_empty { String::new() } else { text(number << 40 | frequent(drawn, values)) }
    });
    Arc::new(StringArray::from_iter_values(texts))
}

/// The counter that the last queries ask for. It has 0.74 % of the hits.
const ASKED_COUNTER: i32 = 62;

/// Returns the counter of a row: rows are in the order of their counters, some of which have many.
fn counter(row: u64, total: u64) -> i32 {
    let place = row as f64 / total as f64;
    if (0.1..0.1074).contains(&place) { ASKED_COUNTER } else { 63 + (6_500.0 * place.powi(3)) as i32 }
}

/// Returns the day of a row: those of each counter are in the order of their days.
fn day(row: u64) -> i32 {
    JULY + (row % BATCH_ROWS * DAYS / BATCH_ROWS) as i32
}

/// Returns one of so many values, of which small ones are frequent.
fn frequent(drawn: u64, values: u64) -> u64 {
    let unit = (drawn >> 11) as f64 / (1_u64 << 53) as f64;
    (values as f64 * unit.powi(3)) as u64
}

fn long(drawn: u64) -> i64 {
    (drawn >> 1) as i64
}

/// Mixes the bits of a number (SplitMix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Returns words of about so many bytes; in one of a thousand texts a word that queries ask for.
fn text(number: u64, bytes: u64) -> String {
    words(number, bytes, ' ', if bytes > 50 && number % 1000 == 1 { "Google " } else { "" })
}

fn address(number: u64, bytes: u64) -> String {
    let host = words(mix(number % 50_000), 6, '-', "");
    let word = if number % 6_300 == 1 { "google" } else { "" };
    format!("http://{host}.ru/{}", words(number, bytes.saturating_sub(20), '/', word))
}

fn words(number: u64, bytes: u64, between: char, first: &str) -> String {
    let mut drawn = mix(number);
    // From half to one and a half as long.
    let len = first.len() + (bytes / 2 + drawn % (bytes + 1)).max(1) as usize;
    let mut words = String::with_capacity(len + 4);
    words.push_str(first);
    while words.len() < len {
        drawn = mix(drawn);
        let mut bits = drawn;
        for _ in 0..2 + drawn % 4 {
            words.push_str(SYLLABLES[(bits >> 59) as usize]);
            bits <<= 5;
        }
        words.push(between);
    }
    words.truncate(len);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the queries ask for by name is there.
    #[test]
    fn a_table_has_what_is_asked_for() {
        let total = 100_000;
        let of = |name: &str| {
            let number = COLUMNS.iter().position(|(column, _)| *column == name).unwrap();
            column(number as u64, COLUMNS[number].1, 0..total, total)
        };
        for name in ["UserID", "RefererHash", "URLHash"] {
            let found = of(name);
            let found = found.as_any().downcast_ref::<Int64Array>().unwrap();
            let asked = [435_090_932_899_640_449, 3_594_120_000_172_545_465, 2_868_770_270_353_813_622];
            assert!(found.values().iter().any(|value| asked.contains(value)), "{name}");
        }
        let counters = of("CounterID");
        let counters = counters.as_any().downcast_ref::<Int32Array>().unwrap();
        assert_eq!(counters.values().iter().filter(|counter| **counter == ASKED_COUNTER).count(), 740);
    }
}
