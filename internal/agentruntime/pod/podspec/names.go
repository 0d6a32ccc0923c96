package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

const (
	// managedByLabel names the program that manages an object.
	managedByLabel = "app.kubernetes.io/managed-by"
	// managedBy is the value of managedByLabel.
	managedBy = "stack-controller"

	// WorkspaceNameAnnotation contains the whole name of the Workspace. A name of more than 63 characters is too long for a label.
	WorkspaceNameAnnotation = autov1alpha1.WorkspaceNameLabel

	// secretSuffix is appended to the name of the other objects to get the name of the Secret with the agent's key pair.
	secretSuffix = "-rpc"
	// podSuffix ends the name of the only pod, with its ordinal.
	podSuffix = "-0"
)

const (
	// maxObjectName leaves room for the revision in the label controller-revision-hash of the pod: "-" and at most 10 characters.
	maxObjectName = validation.LabelValueMaxLength - 11
	// hashLength is the number of hexadecimal digits in a shortened name.
	hashLength = 10
	// shortened separates the start of a shortened name from its hash.
	shortened = "--"
)

// ObjectName returns the name of the StatefulSet and the Service: that of the Workspace with "-workspace" appended.
//
// Both names become labels and host names, which may be shorter and have fewer characters than the name of a Workspace: at
// most 52 characters with the suffix, no dots, and a letter first. A name that does not fit is shortened, with dots replaced
// by hyphens and a "w" before a digit, and gets a hash of itself, as in "w0app--0c7b3928e0-workspace". A name that ends like a
// shortened one gets a hash as well, so that no two Workspaces share a name.
func ObjectName(workspace metav1.Object) string {
	const suffix = autov1alpha1.WorkspaceObjectSuffix
	name := workspace.GetName() + suffix
	if len(name) <= maxObjectName && len(validation.IsDNS1035Label(name)) == 0 && !looksShortened(workspace.GetName()) {
		return name
	}
	return shorten(workspace.GetName(), maxObjectName-len(suffix)) + suffix
}

// PodName returns the name of the pod, which the StatefulSet controller makes.
func PodName(workspace metav1.Object) string {
	return ObjectName(workspace) + podSuffix
}

// SecretName returns the name of the Secret with the key pair of the agent.
func SecretName(workspace metav1.Object) string {
	return ObjectName(workspace) + secretSuffix
}

// Address returns the host:port at which the agent is reached from inside the cluster, for example
// "app-workspace.team.svc.cluster.local:50051". clusterDomain is the DNS domain of the cluster.
func Address(workspace metav1.Object, clusterDomain string) string {
	host := strings.Join([]string{ObjectName(workspace), workspace.GetNamespace(), "svc", clusterDomain}, ".")
	return net.JoinHostPort(host, strconv.Itoa(Port))
}

// Selector returns the labels by which the pod of the Workspace is found.
func Selector(workspace metav1.Object) map[string]string {
	return map[string]string{
		autov1alpha1.ComponentLabel:     autov1alpha1.ComponentWorkspace,
		autov1alpha1.WorkspaceNameLabel: labelValue(workspace.GetName()),
	}
}

// Labels returns the labels of everything that is created for the Workspace: the labels of Selector, and the name of the program that
// manages the object.
func Labels(workspace metav1.Object) map[string]string {
	labels := Selector(workspace)
	labels[managedByLabel] = managedBy
	return labels
}

// WorkspaceOf returns the Workspace for which the object, one of those built here or their pod, was created; false if there is none. It
// reads labels and annotations, which any writer of the object can set: a caller that relies on the answer must check the owner as well.
func WorkspaceOf(object metav1.Object) (types.NamespacedName, bool) {
	labels := object.GetLabels()
	name := labels[autov1alpha1.WorkspaceNameLabel]
	if labels[autov1alpha1.ComponentLabel] != autov1alpha1.ComponentWorkspace || name == "" {
		return types.NamespacedName{}, false
	}
	if whole := object.GetAnnotations()[WorkspaceNameAnnotation]; whole != "" {
		name = whole
	}
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: name}, true
}

// labelValue returns the name of the Workspace, shortened if it is too long for a label.
func labelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength && !looksShortened(name) {
		return name
	}
	return shorten(name, validation.LabelValueMaxLength)
}

// looksShortened reports whether a name ends like a result of shorten.
var looksShortened = regexp.MustCompile(shortened + `[0-9a-f]{` + strconv.Itoa(hashLength) + `}$`).MatchString

// shorten returns a DNS label of at most limit characters that starts with a letter and is different for every name.
func shorten(name string, limit int) string {
	sum := sha256.Sum256([]byte(name))
	hash := hex.EncodeToString(sum[:])[:hashLength]
	rest := strings.ReplaceAll(name, ".", "-")
	if rest[0] >= '0' && rest[0] <= '9' {
		rest = "w" + rest
	}
	rest = rest[:min(len(rest), limit-len(shortened)-hashLength)]
	return strings.TrimRight(rest, "-") + shortened + hash
}
