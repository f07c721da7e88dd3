CREATE MATERIALIZED VIEW by_lane AS SELECT lane, count(*) AS messages, max(version) AS last FROM orders GROUP BY lane;
