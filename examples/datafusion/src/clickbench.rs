//! The 43 queries of ClickBench over its table `hits`, in DataFusion's SQL.

/// What five queries look at: the visits of one counter in July.
const VISITS: &str =
    "`CounterID` = 62 and `EventDate` >= '2013-07-01' and `EventDate` <= '2013-07-31' and `IsRefresh` = 0";
const FIRST: &str = "limit 10";

/// Returns the queries in their order. Most have equals among their first rows, so of two results only the number of rows is the
/// same.
pub(crate) fn queries() -> Vec<String> {
    let searched = "`SearchPhrase` <> ''";
    let phone = "`MobilePhoneModel` <> ''";
    let users = "count(distinct `UserID`) as u";
    let count = "count(*) as c";
    let load = "count(*) as c, sum(`IsRefresh`), avg(`ResolutionWidth`)";
    let views = "count(*) as views";
    let widths: Vec<String> = (0..90).map(|added| format!("sum(`ResolutionWidth` + {added})")).collect();
    // The first one is of the column itself.
    let widths = widths.join(", ").replacen(" + 0", "", 1);
    let of_visits = |condition: &str| format!("{VISITS} and {condition}");
    let queries = [
        all(count),
        of("count(*)", "`AdvEngineID` <> 0"),
        all("sum(`AdvEngineID`), count(*), avg(`ResolutionWidth`)"),
        all("avg(`UserID`)"),
        all("count(distinct `UserID`)"),
        all("count(distinct `SearchPhrase`)"),
        all("min(`EventDate`), max(`EventDate`)"),
        most("`AdvEngineID`", count, "`AdvEngineID` <> 0", "c", ""),
        most("`RegionID`", users, "", "u", FIRST),
        most(
            "`RegionID`",
            "sum(`AdvEngineID`), count(*) as c, avg(`ResolutionWidth`), count(distinct `UserID`)",
            "",
            "c",
            FIRST,
        ),
        most("`MobilePhoneModel`", users, phone, "u", FIRST),
        most("`MobilePhone`, `MobilePhoneModel`", users, phone, "u", FIRST),
        most("`SearchPhrase`", count, searched, "c", FIRST),
        most("`SearchPhrase`", users, searched, "u", FIRST),
        most("`SearchEngineID`, `SearchPhrase`", count, searched, "c", FIRST),
        most("`UserID`", count, "", "c", FIRST),
        most("`UserID`, `SearchPhrase`", count, "", "c", FIRST),
        "select `UserID`, `SearchPhrase`, count(*) from hits group by `UserID`, `SearchPhrase` limit 10".to_string(),
        "select `UserID`, extract(minute from `EventTime`) as m, `SearchPhrase`, count(*) as c from hits \
         group by `UserID`, m, `SearchPhrase` order by c desc limit 10"
            .to_string(),
        of("`UserID`", "`UserID` = 435090932899640449"),
        of("count(*)", "`URL` like '%google%'"),
        most(
            "`SearchPhrase`",
            "min(`URL`), count(*) as c",
            "`URL` like '%google%' and `SearchPhrase` <> ''",
            "c",
            FIRST,
        ),
        most(
            "`SearchPhrase`",
            "min(`URL`), min(`Title`), count(*) as c, count(distinct `UserID`)",
            "`Title` like '%Google%' and `URL` not like '%.google.%' and `SearchPhrase` <> ''",
            "c",
            FIRST,
        ),
        of("*", "`URL` like '%google%' order by `EventTime` limit 10"),
        of("`SearchPhrase`", "`SearchPhrase` <> '' order by `EventTime` limit 10"),
        of("`SearchPhrase`", "`SearchPhrase` <> '' order by `SearchPhrase` limit 10"),
        of("`SearchPhrase`", "`SearchPhrase` <> '' order by `EventTime`, `SearchPhrase` limit 10"),
        "select `CounterID`, avg(length(`URL`)) as l, count(*) as c from hits where `URL` <> '' \
         group by `CounterID` having count(*) > 100000 order by l desc limit 25"
            .to_string(),
        "select regexp_replace(`Referer`, '^https?://(?:www\\.)?([^/]+)/.*$', '\\1') as k, avg(length(`Referer`)) as l, \
         count(*) as c, min(`Referer`) from hits where `Referer` <> '' \
         group by k having count(*) > 100000 order by l desc limit 25"
            .to_string(),
        all(&widths),
        most("`SearchEngineID`, `ClientIP`", load, searched, "c", FIRST),
        most("`WatchID`, `ClientIP`", load, searched, "c", FIRST),
        most("`WatchID`, `ClientIP`", load, "", "c", FIRST),
        most("`URL`", count, "", "c", FIRST),
        most("1, `URL`", count, "", "c", FIRST),
        most("`ClientIP`, `ClientIP` - 1, `ClientIP` - 2, `ClientIP` - 3", count, "", "c", FIRST),
        most("`URL`", views, &of_visits("`DontCountHits` = 0 and `URL` <> ''"), "views", FIRST),
        most("`Title`", views, &of_visits("`DontCountHits` = 0 and `Title` <> ''"), "views", FIRST),
        most(
            "`URL`",
            views,
            &of_visits("`IsLink` <> 0 and `IsDownload` = 0"),
            "views",
            "limit 10 offset 1000",
        ),
        format!(
            "select `TraficSourceID`, `SearchEngineID`, `AdvEngineID`, \
             case when (`SearchEngineID` = 0 and `AdvEngineID` = 0) then `Referer` else '' end as src, `URL` as dst, {views} \
             from hits where {VISITS} group by `TraficSourceID`, `SearchEngineID`, `AdvEngineID`, src, dst \
             order by views desc limit 10 offset 1000"
        ),
        most(
            "`URLHash`, `EventDate`",
            views,
            &of_visits("`TraficSourceID` in (-1, 6) and `RefererHash` = 3594120000172545465"),
            "views",
            "limit 10 offset 100",
        ),
        most(
            "`WindowClientWidth`, `WindowClientHeight`",
            views,
            &of_visits("`DontCountHits` = 0 and `URLHash` = 2868770270353813622"),
            "views",
            "limit 10 offset 10000",
        ),
        "select date_trunc('minute', `EventTime`) as m, count(*) as views from hits \
         where `CounterID` = 62 and `EventDate` >= '2013-07-14' and `EventDate` <= '2013-07-15' and `IsRefresh` = 0 \
         and `DontCountHits` = 0 group by date_trunc('minute', `EventTime`) order by date_trunc('minute', `EventTime`) \
         limit 10 offset 1000"
            .to_string(),
    ];
    queries.into_iter().map(|text| text.replace('`', "\"")).collect()
}

fn all(what: &str) -> String {
    format!("select {what} from hits")
}

fn of(what: &str, condition: &str) -> String {
    format!("select {what} from hits where {condition}")
}

/// Returns a query for the groups that have most.
fn most(groups: &str, measures: &str, condition: &str, by: &str, limit: &str) -> String {
    let condition = if condition.is_empty() { String::new() } else { format!("where {condition}") };
    format!("select {groups}, {measures} from hits {condition} group by {groups} order by {by} desc {limit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_43() {
        let queries = queries();
        assert_eq!(queries.len(), 43);
        assert!(queries.iter().all(|query| query.starts_with("select ") && query.contains(" from hits")));
        assert_eq!(queries[29].matches("sum(").count(), 90);
        assert!(queries[29].starts_with("select sum(\"ResolutionWidth\"), sum(\"ResolutionWidth\" + 1), "));
    }
}
