package steps

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

func TestKindsOfTheEngineAreKnown(t *testing.T) {
	g := NewWithT(t)
	for _, op := range []apitype.OpType{
		apitype.OpSame, apitype.OpCreate, apitype.OpUpdate, apitype.OpDelete, apitype.OpReplace, apitype.OpCreateReplacement,
		apitype.OpDeleteReplaced, apitype.OpRead, apitype.OpReadReplacement, apitype.OpRefresh, apitype.OpReadDiscard, apitype.OpDiscardReplaced,
		apitype.OpRemovePendingReplace, apitype.OpImport, apitype.OpImportReplacement,
	} {
		g.Expect(Of(string(op)).Sign).NotTo(Equal(Unknown), string(op))
	}
	for _, kind := range kinds {
		g.Expect(kind.Destroys && !kind.Changes).To(BeFalse(), kind.Name)
		g.Expect(kind.Part && !kind.Replaces).To(BeFalse(), kind.Name)
	}
}

func TestKindThatIsNotKnownMayDoAnything(t *testing.T) {
	g := NewWithT(t)
	kind := Of("something-new")
	g.Expect(kind.Changes).To(BeTrue())
	g.Expect(kind.Destroys).To(BeTrue())
	g.Expect(Change(map[string]int64{"something-new": 1})).To(BeTrue())
}

func TestCountsAreInOrder(t *testing.T) {
	g := NewWithT(t)
	var names []string
	for _, count := range Counts(map[string]int64{"same": 3, "zebra": 1, "delete": 1, "apple": 1, "create": 2, "update": 0, "read": -1}) {
		names = append(names, count.Name)
	}
	g.Expect(names).To(Equal([]string{"create", "delete", "same", "apple", "zebra"}))
	g.Expect(Change(map[string]int64{"same": 3, "read": 1, "discard": 1, "refresh": 1, "delete": 0})).To(BeFalse())
	g.Expect(Change(nil)).To(BeFalse())
}
