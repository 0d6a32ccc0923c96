package windows

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func returning(policy autov1alpha1.WindowPolicy, cron, zone string, length time.Duration) autov1alpha1.Window {
	return autov1alpha1.Window{Policy: policy, Cron: cron, TimeZone: zone, Window: &metav1.Duration{Duration: length}}
}

func once(policy autov1alpha1.WindowPolicy, from, until string) autov1alpha1.Window {
	return autov1alpha1.Window{Policy: policy, From: new(at(from)), Until: new(at(until))}
}

func at(text string) metav1.Time {
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return metav1.NewTime(parsed)
}

const (
	allow = autov1alpha1.WindowAllow
	deny  = autov1alpha1.WindowDeny
)

func TestAt(t *testing.T) {
	workdays := returning(allow, "0 8 * * 1-4", "Europe/Berlin", 8*time.Hour)
	freeze := once(deny, "2026-12-18T00:00:00Z", "2027-01-04T06:00:00Z")
	nightly := returning(allow, "30 1 * * *", "Europe/Berlin", 3*time.Hour)
	for name, test := range map[string]struct {
		windows   []autov1alpha1.Window
		now, next string
		open      bool
	}{
		"without windows":              {nil, "2026-11-28T12:00:00Z", "", true},
		"before it opens":              {[]autov1alpha1.Window{workdays}, "2026-11-30T06:59:59Z", "2026-11-30T07:00:00Z", false},
		"when it opens":                {[]autov1alpha1.Window{workdays}, "2026-11-30T07:00:00Z", "2026-11-30T15:00:00Z", true},
		"just before it closes":        {[]autov1alpha1.Window{workdays}, "2026-11-30T14:59:59Z", "2026-11-30T15:00:00Z", true},
		"when it closes":               {[]autov1alpha1.Window{workdays}, "2026-11-30T15:00:00Z", "2026-12-01T07:00:00Z", false},
		"over the weekend":             {[]autov1alpha1.Window{workdays}, "2026-12-03T15:00:00Z", "2026-12-07T07:00:00Z", false},
		"in summer":                    {[]autov1alpha1.Window{workdays}, "2026-07-01T06:00:00Z", "2026-07-01T14:00:00Z", true},
		"deny wins":                    {[]autov1alpha1.Window{workdays, freeze}, "2026-12-21T08:00:00Z", "2026-12-21T15:00:00Z", false},
		"over the end of the year":     {[]autov1alpha1.Window{freeze}, "2026-12-31T23:59:59Z", "2027-01-04T06:00:00Z", false},
		"after the freeze":             {[]autov1alpha1.Window{freeze}, "2027-01-04T06:00:00Z", "", true},
		"before the freeze":            {[]autov1alpha1.Window{freeze}, "2026-12-17T23:59:59Z", "2026-12-18T00:00:00Z", true},
		"one of two that allow":        {[]autov1alpha1.Window{workdays, returning(allow, "0 10 * * 6", "", time.Hour)}, "2026-11-28T10:30:00Z", "2026-11-28T11:00:00Z", true},
		"an hour that does not exist":  {[]autov1alpha1.Window{returning(allow, "30 2 * * *", "Europe/Berlin", time.Hour)}, "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", false},
		"a freeze in such an hour":     {[]autov1alpha1.Window{returning(deny, "30 2 * * *", "Europe/Berlin", time.Hour)}, "2026-03-29T01:30:00Z", "2026-03-29T02:00:00Z", false},
		"an hour that occurs twice":    {[]autov1alpha1.Window{returning(deny, "30 2 * * *", "Europe/Berlin", 10*time.Minute)}, "2026-10-25T00:35:00Z", "2026-10-25T00:40:00Z", false},
		"its second time":              {[]autov1alpha1.Window{returning(deny, "30 2 * * *", "Europe/Berlin", 10*time.Minute)}, "2026-10-25T01:35:00Z", "2026-10-25T01:40:00Z", false},
		"a day without a midnight":     {[]autov1alpha1.Window{returning(deny, "0 6 * * 5", "Africa/Cairo", 18*time.Hour)}, "2026-04-24T09:00:00Z", "2026-04-24T21:00:00Z", false},
		"another one":                  {[]autov1alpha1.Window{returning(allow, "0 6 * * 0", "Asia/Beirut", time.Hour)}, "2026-03-29T02:00:00Z", "2026-03-29T03:00:00Z", false},
		"over the change to summer":    {[]autov1alpha1.Window{nightly}, "2026-03-29T03:00:00Z", "2026-03-29T03:30:00Z", true},
		"over the change to winter":    {[]autov1alpha1.Window{nightly}, "2026-10-25T02:00:00Z", "2026-10-25T02:30:00Z", true},
		"longer than until it returns": {[]autov1alpha1.Window{returning(allow, "0 * * * *", "", 3*time.Hour)}, "2026-11-28T12:30:00Z", "2026-11-28T13:00:00Z", true},
		"all of the week":              {[]autov1alpha1.Window{returning(deny, "0 0 * * 0", "", 168*time.Hour)}, "2026-11-28T12:30:00Z", "2026-11-29T00:00:00Z", false},
		"once, and over":               {[]autov1alpha1.Window{once(allow, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")}, "2026-11-28T12:30:00Z", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			state, err := At(test.windows, at(test.now).Time)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(state.Open).To(Equal(test.open), state.Message)
			g.Expect(state.Message == "").To(Equal(test.open))
			if test.next == "" {
				g.Expect(state.Next.IsZero()).To(BeTrue(), state.Next.String())
				return
			}
			g.Expect(state.Next).To(BeTemporally("==", at(test.next).Time))
		})
	}
}

func TestInvalidWindowIsNamedByItsNumber(t *testing.T) {
	good := returning(allow, "0 8 * * 1-4", "", time.Hour)
	for name, test := range map[string]struct {
		window  autov1alpha1.Window
		problem string
	}{
		"six fields":      {returning(allow, "0 0 8 * * 1", "", time.Hour), "cron"},
		"a word":          {returning(allow, "@daily", "", time.Hour), "five fields"},
		"a zone in cron":  {returning(allow, "TZ=Asia/Tokyo 0 8 * * 1", "", time.Hour), "five fields"},
		"hour 25":         {returning(allow, "0 25 * * *", "", time.Hour), "cron"},
		"unknown zone":    {returning(allow, "0 8 * * *", "Europe/Atlantis", time.Hour), "timeZone"},
		"path as a zone":  {returning(allow, "0 8 * * *", "../../etc/passwd", time.Hour), "timeZone"},
		"two slashes":     {returning(allow, "0 8 * * *", "Europe//Berlin", time.Hour), "timeZone"},
		"a dot":           {returning(allow, "0 8 * * *", "Europe/./Berlin", time.Hour), "timeZone"},
		"a dot at first":  {returning(allow, "0 8 * * *", "./Europe/Berlin", time.Hour), "timeZone"},
		"a slash at last": {returning(allow, "0 8 * * *", "Europe/Berlin/", time.Hour), "timeZone"},
		"zone of nobody":  {returning(allow, "0 8 * * *", "Local", time.Hour), "timeZone"},
		"no length":       {returning(allow, "0 8 * * *", "", 0), "longer than 0"},
		"a month":         {returning(allow, "0 8 * * *", "", 720*time.Hour), "at most 168h"},
		"nothing":         {autov1alpha1.Window{Policy: allow}, "set cron and window, or from and until"},
		"the wrong way":   {once(deny, "2027-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), "later than from"},
		"cron and window": {autov1alpha1.Window{Policy: allow, Cron: "0 8 * * *", From: new(at("2027-01-01T00:00:00Z"))}, "either cron"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := At([]autov1alpha1.Window{good, test.window}, time.Now())
			NewWithT(t).Expect(err).To(MatchError(And(HavePrefix("window 2: "), ContainSubstring(test.problem))))
		})
	}
}

// Whoever waits until the next edge finds another state in the end: each wait has a waker, and there is no busy loop.
func FuzzAt(f *testing.F) {
	f.Add("0 8 * * 1-4", "Europe/Berlin", int64(8*time.Hour), int64(1764331200))
	f.Add("*/5 * * * *", "", int64(time.Hour), int64(0))
	f.Add("0 0 29 2 *", "America/Sao_Paulo", int64(time.Minute), int64(1582934400))
	f.Fuzz(func(t *testing.T, expression, zone string, length, second int64) {
		now := time.Unix(second%4102444800, 0)
		window := returning(allow, expression, zone, time.Duration(length))
		if expression == "" {
			return
		}
		state, err := At([]autov1alpha1.Window{window}, now)
		if err != nil {
			return
		}
		if !state.Next.IsZero() && !state.Next.After(now) {
			t.Fatalf("at %s the next edge of %q in %q is %s", now, expression, zone, state.Next)
		}
		window.Policy = deny
		opposite, err := At([]autov1alpha1.Window{window}, now)
		if err != nil || opposite.Open == state.Open || !opposite.Next.Equal(state.Next) {
			t.Fatalf("%v %v %v", state, opposite, err)
		}
	})
}
