package api_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestWindowsThatCannotWorkAreRefused(t *testing.T) {
	const oneForm, both, order = "set either cron", "cron needs window, and window and timeZone need cron", "from needs until, which has to be later"
	for name, test := range map[string]struct{ windows, problem string }{
		"none":                 {"[]", ""},
		"both kinds":           {"[{policy: Allow, cron: '0 8 * * 1-4', timeZone: Europe/Berlin, window: 8h}, {policy: Deny, from: '2026-12-18T00:00:00Z', until: '2027-01-04T06:00:00Z'}]", ""},
		"50":                   {list(50, "{policy: Allow, cron: '%d 8 * * *', window: 1h}"), ""},
		"51":                   {list(51, "{policy: Allow, cron: '%d 8 * * *', window: 1h}"), "Too many: 51"},
		"another policy":       {"[{policy: Maybe, cron: '0 8 * * *', window: 1h}]", "supported values"},
		"no policy":            {"[{cron: '0 8 * * *', window: 1h}]", "Required value"},
		"nothing":              {"[{policy: Allow}]", oneForm},
		"both forms":           {"[{policy: Allow, cron: '0 8 * * *', window: 1h, from: '2026-12-18T00:00:00Z', until: '2027-01-04T06:00:00Z'}]", oneForm},
		"no window":            {"[{policy: Allow, cron: '0 8 * * *'}]", both},
		"only a window":        {"[{policy: Allow, from: '2026-12-18T00:00:00Z', until: '2027-01-04T06:00:00Z', window: 1h}]", both},
		"a zone without cron":  {"[{policy: Allow, from: '2026-12-18T00:00:00Z', until: '2027-01-04T06:00:00Z', timeZone: UTC}]", both},
		"of no length":         {"[{policy: Allow, cron: '0 8 * * *', window: 0s}]", "must be longer than 0"},
		"of more than a week":  {"[{policy: Allow, cron: '0 8 * * *', window: 168h1s}]", "at most 168h"},
		"of a negative length": {"[{policy: Allow, cron: '0 8 * * *', window: -1h}]", "should match"},
		"the wrong way":        {"[{policy: Deny, from: '2027-01-04T06:00:00Z', until: '2026-12-18T00:00:00Z'}]", order},
		"without an end":       {"[{policy: Deny, from: '2027-01-04T06:00:00Z'}]", order},
		"a day that is none":   {"[{policy: Deny, from: '2027-02-30T06:00:00Z', until: '2028-12-18T00:00:00Z'}]", "date-time"},
		"a long expression":    {"[{policy: Allow, cron: '" + strings.Repeat("0,", 100) + "0 8 * * *', window: 1h}]", "Too long"},
	} {
		for kindName, of := range map[string]kind{
			"Stack":        {"pulumi.com/v1", "Stack", "{stack: dev}"},
			"StackRollout": {"auto.pulumi.com/v1alpha1", "StackRollout", "{sourceRef: {kind: GitRepository, name: a}, waves: [{name: all}]}"},
		} {
			t.Run(name+" in a "+kindName, func(t *testing.T) {
				g := NewWithT(t)
				err := offer(t, of.object(g, "windows", fmt.Sprintf("{windows: %s}", test.windows)))
				if test.problem == "" {
					g.Expect(err).NotTo(HaveOccurred())
					return
				}
				g.Expect(err).To(MatchError(And(ContainSubstring("windows"), ContainSubstring(test.problem))))
			})
		}
	}
}
