-- The database's clock, Unix ms.
select (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms
