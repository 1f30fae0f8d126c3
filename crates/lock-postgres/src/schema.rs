//! The tables and functions that keep the locks, as SQL.

/// The version of the tables and functions that this client knows. It works with those that are one older, and refuses newer
/// ones.
pub const VERSION: i32 = 1;

/// The SQL that creates or upgrades the tables and functions in a schema.
///
/// The server runs it in one transaction, as it is one simple query. It may be repeated, also by several processes at once.
#[must_use]
pub fn install(schema: &str) -> String {
    let identifier = format!("\"{}\"", schema.replace('"', "\"\""));
    // In one pass: a name may look like one of the places.
    let sql = PARTS.join("\n");
    let parts = sql.split('@').map(|part| match part {
        "version" => VERSION.to_string(),
        "path" => literal(&format!("{identifier}, pg_temp")),
        "name" => literal(schema),
        "schema" => identifier.clone(),
        text => text.to_owned(),
    });
    parts.collect()
}

/// The same for `psql`, which would send each statement by itself.
#[must_use]
pub fn script(schema: &str) -> String {
    format!("BEGIN;\n{}COMMIT;\n", install(schema))
}

const PARTS: [&str; 12] = [
    include_str!("sql/begin.sql"),
    include_str!("sql/tables.sql"),
    include_str!("sql/queue.sql"),
    include_str!("sql/ask.sql"),
    include_str!("sql/release.sql"),
    include_str!("sql/extend.sql"),
    include_str!("sql/break.sql"),
    include_str!("sql/fence.sql"),
    include_str!("sql/inspect.sql"),
    include_str!("sql/observe.sql"),
    include_str!("sql/sweep.sql"),
    include_str!("sql/end.sql"),
];

/// A text as SQL, whatever `standard_conforming_strings` is.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_schemas_are_quoted() {
        let sql = install(r#"it's "\ours"#);
        for quoted in [
            r#"CREATE SCHEMA "it's ""\ours";"#,
            r#"to_regnamespace(quote_ident(E'it''s "\\ours'))"#,
            r#"'search_path', E'"it''s ""\\ours", pg_temp', true"#,
        ] {
            assert!(sql.contains(quoted), "{quoted}");
        }
        assert!(!sql.contains('@'));
        // A name that looks like one of the places.
        assert!(install("@schema@'").contains(r#"E'"@schema@''", pg_temp'"#));
    }
}
