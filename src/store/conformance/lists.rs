//! What an operator sees.

use super::law::*;

laws! {
    /// Every filter, by itself and with others.
    a_list_has_what_its_filter_lets_through(law) {
        let client = law.request().client;
        let mutation = law.request().mutation;
        let make = async |settlement: Option<Settlement>, mutation: &Arc<str>| {
            let request = ClaimRequest { client: client.clone(), mutation: Arc::clone(mutation), ..law.request() };
            let owner = law.owner(&request).await?;
            if let Some(settlement) = settlement {
                law.settle(&owner, &settlement).await?;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            law.record(&request).await
        };
        let all = [
            make(None, &mutation).await?,
            make(Some(finish(b"x")), &mutation).await?,
            make(Some(release(Some(LONG))), &mutation).await?,
            make(Some(settling(b"x", LONG)), &mutation).await?,
            make(Some(finish(b"x")), &"other".into()).await?,
        ];
        let own = Filter { client: Some(client.clone()), ..Filter::default() };
        let of = |state, mutation: Option<&Arc<str>>| Filter {
            state,
            mutation: mutation.map(ToString::to_string),
            ..own.clone()
        };
        for (filter, expected) in [
            (of(None, None), &[0, 1, 2, 3, 4][..]),
            (of(Some(State::InProgress), None), &[0]),
            (of(Some(State::Succeeded), None), &[1, 4]),
            (of(Some(State::Released), None), &[2]),
            (of(Some(State::Settling(Outcome::Succeeded)), None), &[3]),
            (of(Some(State::Failed), None), &[]),
            (of(None, Some(&mutation)), &[0, 1, 2, 3]),
            (of(Some(State::Succeeded), Some(&mutation)), &[1]),
            (Filter { limit: 2, ..own.clone() }, &[0, 1]),
            (Filter { older_than: Some(LONG), ..own.clone() }, &[]),
            (Filter { older_than: Some(Duration::from_millis(1)), ..own.clone() }, &[0, 1, 2, 3, 4]),
            (Filter { mutation: Some(mutation.to_string()), ..Filter::default() }, &[0, 1, 2, 3]),
        ] {
            let listed = law.told(law.store.list(&filter).await)?;
            let expected: Vec<_> = expected.iter().map(|at: &usize| all[*at].clone()).collect();
            ensure!(law, listed == expected, "{filter:?} lists {listed:?} and not {expected:?}");
        }
        let held = law.request();
        let owner = law.owner(&held).await?;
        law.settle(&owner, &hold()).await?;
        let filter = Filter { state: Some(State::NeedsRecovery), client: Some(held.client.clone()), ..Filter::default() };
        let listed = law.told(law.store.list(&filter).await)?;
        ensure!(law, listed == [law.record(&held).await?], "what is held is listed as {listed:?}");
    }

    /// A list has as many records as its limit says, and a hundred without one.
    a_list_has_as_many_as_its_limit_says(law) {
        let client = law.request().client;
        let mut oldest = Vec::new();
        for _ in 0..102 {
            let request = ClaimRequest { client: client.clone(), ..law.request() };
            oldest.push(law.take(&request).await?.created_at);
        }
        for (limit, expected) in [(0, 100), (101, 101), (u32::MAX, 102)] {
            let filter = Filter { client: Some(client.clone()), limit, ..Filter::default() };
            let listed = law.told(law.store.list(&filter).await)?;
            let times: Vec<_> = listed.iter().map(|record| record.created_at).collect();
            ensure!(law, times == oldest[..expected], "a limit of {limit} lists {} records, or others", times.len());
        }
    }

    /// How many records of a mutation are in each state, and since when.
    a_count_tells_each_state_of_each_mutation(law) {
        let mutation = law.request().mutation;
        let mut oldest = None;
        for settlement in [Some(finish(b"x")), Some(finish(b"x")), None] {
            let request = ClaimRequest { mutation: Arc::clone(&mutation), ..law.request() };
            let owner = law.owner(&request).await?;
            if let Some(settlement) = settlement {
                law.settle(&owner, &settlement).await?;
                let created_at = law.record(&request).await?.created_at;
                oldest.get_or_insert(created_at);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let counts = law.told(law.store.count().await)?;
        let of = |state| counts.iter().find(|count| *count.mutation == *mutation && count.state == state);
        let (finished, open) = (of(State::Succeeded), of(State::InProgress));
        ensure!(law, finished.is_some_and(|count| count.records == 2 && Some(count.oldest) == oldest), "{finished:?}");
        ensure!(law, open.is_some_and(|count| count.records == 1), "{open:?}");
        ensure!(law, counts.iter().filter(|count| *count.mutation == *mutation).count() == 2, "{counts:?}");
    }

    /// What is set up passes its own check.
    what_is_set_up_passes_its_check(law) {
        law.told(law.store.check().await)?;
    }
}
