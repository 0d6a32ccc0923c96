package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/stack-controller/stack-controller/tests/measure"
)

// apiRequests returns how many requests of each kind the API server has answered, but for those that are always there.
func (b *podBench) apiRequests(ctx context.Context) (map[string]int, error) {
	metrics, err := b.system.Cluster.Kubectl(ctx, "get", "--raw=/metrics")
	if err != nil {
		return nil, err
	}
	return measure.CountRequests(metrics), nil
}

// printRequests prints what was asked between two looks by so many Stacks, the most frequent first.
func (b *podBench) printRequests(before, after map[string]int, stacks int) {
	made := map[string]int{}
	sum := 0
	for kind, count := range after {
		if count > before[kind] {
			made[kind] = count - before[kind]
			sum += made[kind]
		}
	}
	t := measure.NewTable(b.out, fmt.Sprintf("requests to the API server, %d Stacks", stacks), "number", "per Stack")
	kinds := slices.SortedFunc(maps.Keys(made), func(a, b string) int {
		return cmp.Or(cmp.Compare(made[b], made[a]), cmp.Compare(a, b))
	})
	row := func(name string, count int) {
		t.Cells(name, strconv.Itoa(count), fmt.Sprintf("%.1f", float64(count)/float64(stacks)))
	}
	for _, kind := range kinds {
		row(kind, made[kind])
	}
	row("sum", sum)
	t.Flush()
}
