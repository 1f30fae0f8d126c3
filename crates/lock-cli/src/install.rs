//! `polylock install`: the tables and functions that keep locks in PostgreSQL.

use clap::Args;
use polylock::PostgresConfig;
use serde_json::json;

use crate::connect::LocksOptions;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// The options of `polylock install`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InstallOptions {
    #[command(flatten)]
    store: LocksOptions,

    /// Print the SQL, for an administrator, and connect to nothing
    #[arg(long)]
    print: bool,
}

const EXAMPLES: &str = "\
Examples:
  polylock install --url postgres://admin@host/shop
  polylock install --url postgres://host/shop?schema=locks --print | psql -v ON_ERROR_STOP=1 --dbname shop";

pub(crate) async fn run(options: InstallOptions, output: Output) -> Result<Exit, Failure> {
    let config = PostgresConfig::from_url(&options.store.url()?)?;
    if options.print {
        let sql = config.schema_sql();
        output.result(&sql, &json!({ "sql": sql }))?;
        return Ok(Exit::Done);
    }
    config.install_schema().await?;
    output.result("The schema is installed.", &json!({ "installed": true }))?;
    Ok(Exit::Done)
}
