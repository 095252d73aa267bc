//! What is known of keys, as tables.

use async_graphql_idempotency::{Record, operator::Inspection, record::Timestamp, store::Count};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

/// Where long cells are broken, in characters.
const WIDTH: u16 = 120;

pub(super) fn records(records: &[Record]) -> String {
    if records.is_empty() {
        return "no keys".to_owned();
    }
    let mut table = table(["client", "key", "mutation", "state", "attempt", "first claimed", "due"]);
    for record in records {
        table.add_row([
            record.client.to_string(),
            record.key.to_string(),
            record.mutation.clone(),
            record.state.to_string(),
            record.attempt.to_string(),
            record.created_at.rfc3339(),
            record.due_at.rfc3339(),
        ]);
    }
    table.to_string()
}

pub(super) fn counts(counts: &[Count]) -> String {
    if counts.is_empty() {
        return "no keys".to_owned();
    }
    let mut table = table(["mutation", "state", "keys", "oldest"]);
    for count in counts {
        table.add_row([
            count.mutation.clone(),
            count.state.to_string(),
            count.records.to_string(),
            count.oldest.rfc3339(),
        ]);
    }
    if let Some(keys) = table.column_mut(2) {
        keys.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

pub(super) fn inspection(inspection: &Inspection) -> String {
    let record = &inspection.reading.record;
    let mut facts = Table::new();
    facts.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    facts.add_row(["client", record.client.as_str()]);
    facts.add_row(["key", record.key.as_str()]);
    facts.add_row(["mutation", &record.mutation]);
    facts.add_row(["state", record.state.as_str()]);
    facts.add_row(["reason", record.reason.as_deref().unwrap_or("–")]);
    facts.add_row(["request id", &record.request_id.to_string()]);
    facts.add_row(["attempts", &record.attempt.to_string()]);
    facts.add_row(["tries to recover", &record.recoveries.to_string()]);
    facts.add_row(["first claimed", &record.created_at.rfc3339()]);
    facts.add_row(["ended", &record.ended_at.map_or_else(|| "–".to_owned(), Timestamp::rfc3339)]);
    facts.add_row(["due", &due(record.due_at, inspection.reading.now)]);
    facts.add_row(["asked for", &record.selection]);

    let mut steps = table(["step", "kind", "by attempt", "result"]);
    steps.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    for point in &inspection.steps {
        steps.add_row([
            point.name.clone(),
            point.kind.as_str().to_owned(),
            point.attempt.to_string(),
            point.result.clone().unwrap_or_else(|| "begun, not finished".to_owned()),
        ]);
    }
    let steps = if inspection.steps.is_empty() { "no steps".to_owned() } else { steps.to_string() };
    let response = match &record.response {
        Some(response) => format!("response: {}", String::from_utf8_lossy(response)),
        None => "no response".to_owned(),
    };
    format!("{facts}\n{steps}\n{response}")
}

/// When a state stops being true by itself, and how far off that is by the store's clock.
fn due(at: Timestamp, now: Timestamp) -> String {
    let left = humantime::format_duration(now.until(at));
    if at > now { format!("{}, in {left}", at.rfc3339()) } else { format!("{}, by now", at.rfc3339()) }
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
    table
}
