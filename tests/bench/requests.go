package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// label is one of a metric's labels.
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// apiRequests returns how many requests of each kind the API server has answered, but for those that are always there.
func (b *podBench) apiRequests(ctx context.Context) (map[string]int, error) {
	metrics, err := b.system.Cluster.Kubectl(ctx, "get", "--raw=/metrics")
	if err != nil {
		return nil, err
	}
	return countRequests(metrics)
}

// countRequests reads the metric of the API server's requests.
func countRequests(metrics string) (map[string]int, error) {
	counts := map[string]int{}
	for line := range strings.Lines(metrics) {
		labels, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		if !found || !strings.HasPrefix(labels, "apiserver_request_total{") {
			continue
		}
		count, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("read how many requests were made: %w", err)
		}
		names := map[string]string{}
		for _, match := range label.FindAllStringSubmatch(labels, -1) {
			names[match[1]] = match[2]
		}
		if names["resource"] == "leases" || names["resource"] == "" {
			continue // the servers' own, and what is not about objects
		}
		kind := names["verb"] + " " + names["resource"]
		if names["subresource"] != "" {
			kind += "/" + names["subresource"]
		}
		counts[kind] += int(count)
	}
	return counts, nil
}

// printRequests prints what was asked between two looks, the most frequent first.
func (b *podBench) printRequests(before, after map[string]int) {
	made := map[string]int{}
	sum := 0
	for kind, count := range after {
		if count > before[kind] {
			made[kind] = count - before[kind]
			sum += made[kind]
		}
	}
	t := newTable(b.out, fmt.Sprintf("requests to the API server, %d Stacks", b.stacks), "number", "per Stack")
	kinds := slices.SortedFunc(maps.Keys(made), func(a, b string) int {
		return cmp.Or(cmp.Compare(made[b], made[a]), cmp.Compare(a, b))
	})
	row := func(name string, count int) {
		t.cells(name, strconv.Itoa(count), fmt.Sprintf("%.1f", float64(count)/float64(b.stacks)))
	}
	for _, kind := range kinds {
		row(kind, made[kind])
	}
	row("sum", sum)
	t.flush()
}
