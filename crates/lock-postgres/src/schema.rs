//! The tables and functions that keep the locks, as SQL.

/// The version of the tables and functions that this client knows. It refuses newer ones.
pub const VERSION: i32 = 2;
/// The oldest version that this client works with. Version 1 let every role of the database become the owner of the functions.
pub const OLDEST: i32 = 2;

/// The roles that may call the functions, besides the owner of the schema. Nobody else may.
///
/// # Examples
///
/// ```
/// use lock_postgres::schema::{Grants, script};
///
/// let sql = script("polylock", &Grants::default().client("app").operator("admin"));
/// assert!(sql.contains("\"app\""));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Grants {
    clients: Vec<String>,
    operators: Vec<String>,
}

impl Grants {
    /// Adds a role that uses locks, and fences its transactions. `public` is every role of the database.
    #[must_use]
    pub fn client(mut self, role: impl Into<String>) -> Self {
        self.clients.push(role.into());
        self
    }

    /// Adds a role that breaks locks as well.
    #[must_use]
    pub fn operator(mut self, role: impl Into<String>) -> Self {
        self.operators.push(role.into());
        self
    }
}

/// The SQL that creates or upgrades the tables and functions in a schema, and grants what these roles need.
///
/// The server runs it in one transaction, as it is one simple query. It may be repeated. Where several processes create the schema at
/// once, one succeeds, and the others fail and try again.
#[must_use]
pub fn install(schema: &str, grants: &Grants) -> String {
    let identifier = quoted(schema);
    // In one pass: a name may look like one of the places.
    let sql = PARTS.join("\n");
    let parts = sql.split('@').map(|part| match part {
        "version" => VERSION.to_string(),
        "path" => literal(&format!("{identifier}, pg_temp")),
        "name" => literal(schema),
        "clients" => literal(&list(&grants.clients)),
        "operators" => literal(&list(&grants.operators)),
        "mint" => MINT.to_owned(),
        text => text.to_owned(),
    });
    parts.collect()
}

/// The same for `psql`, which would send each statement by itself.
#[must_use]
pub fn script(schema: &str, grants: &Grants) -> String {
    // Whatever `.psqlrc` says: after a refusal nothing else is run.
    format!(
        "\\set ON_ERROR_STOP on\n\\set ON_ERROR_ROLLBACK off\nBEGIN;\n{}COMMIT;\n",
        install(schema, grants)
    )
}

/// The next block of 16 tokens after the last one, from the clock if that is ahead. A function would cost a call more for each grant.
const MINT: &str = "greatest(last + 16, (extract(epoch FROM v_now) * 1000000)::bigint) >> 4 << 4";

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

/// An identifier in SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn list(roles: &[String]) -> String {
    roles.iter().map(|role| quoted(role)).collect::<Vec<_>>().join(", ")
}

/// A text as SQL, whatever `standard_conforming_strings` is.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_schemas_are_quoted() {
        let grants = Grants::default().client(r#"the "app"'s"#).client("b");
        let sql = install(r#"it's "\ours"#, &grants);
        for quoted in [
            r#"'polylock.schema', E'it''s "\\ours', true"#,
            r#"('clients', E'"the ""app""''s", "b"'), ('operators', E'')"#,
            r#"'search_path', E'"it''s ""\\ours", pg_temp', true"#,
        ] {
            assert!(sql.contains(quoted), "{quoted}");
        }
        assert!(!sql.contains('@'));
        // A name that looks like one of the places.
        assert!(install("@version@'", &grants).contains(r#"E'"@version@''", pg_temp'"#));
    }
}
