package measure

import (
	"iter"
	"regexp"
	"strconv"
	"strings"
)

// label matches one label of a metric.
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// Series returns the labels and the values of a metric with labels, from metrics in the text format of Prometheus. A value that is not a
// number is left out.
func Series(metrics, name string) iter.Seq2[map[string]string, float64] {
	return func(yield func(map[string]string, float64) bool) {
		for line := range strings.Lines(metrics) {
			labels, text, found := strings.Cut(strings.TrimSpace(line), "} ")
			value, err := strconv.ParseFloat(text, 64)
			if !found || err != nil || !strings.HasPrefix(labels, name+"{") {
				continue
			}
			names := map[string]string{}
			for _, match := range label.FindAllStringSubmatch(labels, -1) {
				names[match[1]] = match[2]
			}
			if !yield(names, value) {
				return
			}
		}
	}
}

// CountRequests returns the numbers of requests that the API server has answered, by verb and resource. It leaves out requests for leases
// and requests that are not about a resource.
func CountRequests(metrics string) map[string]int {
	counts := map[string]int{}
	for names, count := range Series(metrics, "apiserver_request_total") {
		if names["resource"] == "leases" || names["resource"] == "" {
			continue // leases, which the servers renew, and requests that are not about objects
		}
		kind := names["verb"] + " " + names["resource"]
		if names["subresource"] != "" {
			kind += "/" + names["subresource"]
		}
		counts[kind] += int(count)
	}
	return counts
}
