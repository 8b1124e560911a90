-- Takes messages into the spool, in order. $1 tenant, then one array a column.
insert into foldmq.spool (tenant_id, queue, partition, message_id, transaction_id, producer_sub,
    payload)
  select $1, i.queue, i.partition, i.message_id, i.transaction_id, i.producer_sub, i.payload
    from unnest($2::text[], $3::text[], $4::uuid[], $5::text[], $6::text[], $7::bytea[])
         with ordinality i (queue, partition, message_id, transaction_id, producer_sub, payload, at)
   order by i.at
