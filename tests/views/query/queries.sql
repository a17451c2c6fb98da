-- One query a line: its plan must answer as DuckDB does.
select k, x from a where x > 6
select * from a
select a.k, b.y from a join b on a.k=b.k
select a.k, sum(b.y) as s, count(*) n, avg(b.y), avg(x), count(x), sum(f), avg(f) from a join b on a.k=b.k group by a.k
select count(*) from a where x > 100
select count(*), sum(x) from a
select a.*, b.y from a left join b on a.k=b.k
select a.*, b.y from a right join b on a.k=b.k and a.x>5
select a.*, b.y from a full join b on a.k=b.k and a.x*2 > b.y
select k from a where k not in (select k from b)
select k from a where k not in (select k from b where k is not null)
select k from a where k in (select k from b)
select k from a where exists (select 1 from b where b.k=a.k and b.y > 2)
select k from a where not exists (select 1 from b where b.k=a.k)
select k,(select count(*) from b where b.k=a.k) from a
select k,(select max(y) from b where b.k=a.k and b.s = a.s) from a
select k, x in (select k from b) from a
select distinct k from a
select distinct count(*) from a group by k
select k from a union select k from b
select k from a except select k from b
select k from a except all select k from b
select k from a intersect all select k from b
select k, max(x), sum(x) from a group by k having sum(x) > 5
select max(x), min(s) from a
select max(x), sum(x), count(distinct k) from a
select k, count(distinct x), sum(x) from a group by k
select k, s, sum(x), grouping(k,s) from a group by rollup(k,s)
select k, row_number() over (partition by k order by x, s, f) r from a
select k, sum(x) over (partition by k), rank() over (order by x) from a
select * from a qualify row_number() over (partition by k order by x desc, f) = 1
select k, x from a order by x desc, k, s, f limit 2
select * from (values (1,'a'),(2,'b')) v(i,t) join a on a.k=v.i
with t as (select k, sum(x) q from a group by k) select t1.k, t2.q from t t1 join t t2 on t1.k=t2.k
select k, string_agg(s, ',' order by s) from a group by k
select k, stddev(f), median(x) from a group by k
select k from a a1 where x = (select min(x) from a a2 where a2.k = a1.k)
select * from a join lateral (select y from b where b.k=a.k order by y, s limit 1) t on true
select * from a left join lateral (select y from b where b.k=a.k order by y, s limit 1) t on true
select k from a where x > all (select k from b where k is not null)
select k from a where x > any (select k from b)
select k as z, z+1 as w from a where z > 1 group by all
select sum(x) filter (where k=1), count(*) filter (where s='p') from a
select 1
select k, case when exists(select 1 from b where b.k=a.k) then 'y' else 'n' end from a
select * from a natural join b
select k, a.s, y from a left join b using (k)
select k, y from a full join b using (k)
select a.k, r.i from a, range(3) r(i)
select k, unnest([x, 1]) from a
select a.k, u from a, unnest([x, 1]) as t(u)
select k, list_transform([x,1], lambda q: q+1) from a
select p.u, p.v, l[1], count(*) from t group by all
select i, u.v from t, unnest(t.l) as u(v)
select i, unnest(l) as v from t where i > 1
select i, date_trunc('month', w) as m, count(*) from t group by i, m
select a.k, a.x, b.y from a asof join b on a.k = b.k and a.x >= b.y
select a.k, a.x, b.y from a asof left join b on a.s = b.s and a.x > b.y
select * from a semi join b using (k)
select * from a anti join b using (k)
select s, list(x order by x desc) from a group by s
select k, sum(x) over w as q, min(x) over w from a window w as (partition by s order by x)
select k, x, lag(x) over (partition by s order by x, k, f) from a
select k, count(*) from a group by k having count(*) > (select count(*) from b where b.k = a.k)
select k, (select sum(y) from b where b.k = a.k group by b.s having count(*) > 1) from a where k = 1
select (select count(*) from b where b.k = a.k and b.s in (select s from a a2 where a2.k = a.k)) from a
select k from a where x in (select x from a a2 where a2.k = a.k and a2.s <> a.s)
select k from a where (k, s) in (select k, s from b)
select k, x from a where x not in (select b.k from b where b.s = a.s)
select k, x not in (select b.k from b where b.s = a.s) from a
select k, not exists (select 1 from b where b.k > a.k) from a
select k, x = any (select k from b), x <> all (select k from b where k is not null) from a
select k from a order by k desc nulls last, x, f, s limit 2 offset 1
select distinct on (s) s, x from a order by s, x desc, k
select s, k, sum(x), grouping(s), grouping(k), grouping(s, k) from a group by cube (s, k)
select s, k, count(*) from a group by grouping sets ((s), (k), (), (s))
select count(*), sum(x) from e
select k, count(*) from e group by rollup (k)
select count(*) from e group by 'q'
select 1 as one where exists (select 1 from e)
select k, sum(x) + 1 as v, v * 2 as w from a group by k order by w limit 1
select avg(y), avg(x), sum(y) / count(*) from b, a
select k, avg(y) from b group by k
select x, (select max(b.y) from b where b.k = a.k or b.s = a.s) from a
select s from (select s, count(*) as n from a group by s) q join (values (2), (6)) v(n) using (n)
select k from a union all select k from b union select 9
(select k from a except select k from b) intersect select k from a where x > 3
select k, x from a union all select k, y from b order by k, x limit 3
(select k from a order by k limit 2) union all (select k from b order by k desc nulls last limit 2)
select a.k, c.n from a cross join lateral (select count(*) as n from b where b.k = a.k) c
select a.k, c.y from a left join lateral (select y from b where b.k = a.k and b.y > 2) c on true
select * from a where k is not distinct from (select null)
select k, s from a where s like 'p%' or k in (select k from b where y > 2)
select count(distinct x) filter (where s = 'p'), count(distinct x), sum(distinct x), max(f) from a
select k, count(distinct x), count(distinct s), sum(x) from a group by k
select s, bool_and(x > 4), bool_or(x > 4), count_if(x > 4), arg_max(k, x), mode(x) from a group by s
select quantile_cont(x, 0.5), median(x), string_agg(s, '-' order by s) from a
select k, row_number() over (order by x, k, f, s) from a qualify row_number() over (partition by s order by x, k, f) = 1
select sum(sum(x)) over (order by k), k from a group by k
select k, count(*) over (), rank() over (order by x) from a
select case when x > 4 then sum(x) else 0 end from a group by x
select a1.k from a a1 left join a a2 on a1.k = a2.k and a2.x > 5 where a2.k is null
select a.k, b.k as bk, e.k as ek from a full join b on a.k = b.k full join e on e.k = b.k
select a.k, b.k as bk from a right join b on a.k = b.k and a.x > (b.y + 3)
with r as (select k, sum(x) as v from a group by k) select r.k from r where v = (select max(v) from r)
with r(p, q) as (select k, x from a), z as (select p from r where q > 4) select z.p, q from z, r where z.p = r.p
select k from a where exists (select 1 from b where b.k = a.k and exists (select 1 from a a2 where a2.x = a.x and a2.k = b.k))
select max(k), min(s) from a where x > 100
select i, w + interval 1 day, w - interval '2 hours' from t
select * exclude (f) replace (x + 1 as x) from a
select list_transform(l, lambda v: v + 1), l[1] from t where l is not null
select f, 1 / f from a where f <> 0
select k from a where x / 2 > 2 and k % 2 = 1
select round(stddev(f), 9), var_pop(x), corr(x, k) from a where abs(f) < 100 group by s
select k, first_value(x) over (partition by s order by x, k, f) from a
select k, sum(f) over (partition by k), avg(x) over (partition by k order by x rows between 1 preceding and current row) from a
select k, x from a order by all limit 4
select k as "K 1", 'it''s i0."k"' as q from a where s <> 'i0."k"'
select c from (select x + 1 as c, k from a where k > 1) where c > 5 and c < 9
select s, list(x order by k) from (select distinct s, x, k from a where k is not null) group by s having count(*) < 3
select k from (select k, x + 1 as c from a where k > 1) where c > 5
select k, sum(x) as x from a group by k having x > 5
select a.k from a join b on a.k = b.y
select s as k, count(*) as n from a group by k, s
select -k as k, x from a order by k, x, f, s limit 3
select k, s, sum(x) as t, rank() over (partition by grouping(s) order by sum(x)) as r from a group by rollup (k, s)
select k, (select count(*) from (select k from b where b.k = a.k union select k from a a2 where a2.s = a.s) q) as n from a
select k, (select y from b where b.k = a.k order by y desc, s limit 1) as y from a
select k from a limit 0
select k, x from a order by k limit 0
select count(*) as n from (select * from a limit 0)
select k from a where exists (select 1 from b where b.k = a.k limit 1)
select k from a where not exists (from b where b.k = a.k order by b.y limit 5)
select k, exists (select 1 from b where b.k = a.k limit 1) as e from a
select k from a where not exists (select 1 from b where b.k = a.k limit 0)
select IF(x > 5, k, 0) as c, if(s = 'p', s, 'other') as d from a
select extract(dow from w) as d, extract(doy from w) as e, date_part('weekday', w) as f from t
select mod(x, 2) as m, x % 3 as n from a
select k, string_agg(s order by s) as c, group_concat(s order by s) as d from a group by k
select A.K, Q.X from a join a as q on A.k = q.K
select {'it''s': k, 'a"b': x} as s from a
select k from (select k, unnest([x, 1]) u from a)
select count(*) n from (select k, unnest([s, 'z']) u from a)
select k from (select k, unnest([x, 1]) u from a union all select k, y from b)
select k, max(x, 2) as c, min(y, 3) as d, max(x) as e from (select k, x, 1 as y from a) group by k
select max(x, 9) as c, max(x) as d from a
