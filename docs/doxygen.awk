# Doxygen's view of a header: an example that is indented by three blanks or more is code, a comment behind a member belongs to
# that member, with the lines that continue it, and what stands in a namespace belongs to the header's group (docs/api/groups.dox).
BEGIN {
  while ((getline line < "docs/api/groups.dox") > 0) {
    if (split(line, word, " ") < 5) continue
    if (word[2] == "@file" && index(ARGV[1], word[3])) own = word[5]
    if (word[2] == "@dir" && index(ARGV[1], word[3] "/")) of_folder = word[5]
  }
  group = own ? own : of_folder
}
ARGV[1] ~ /\.dox$/ { gsub(/ @(ingroup|brief)/, "\n&"); print; next }
NR == 1 && !own && of_folder { print "/** @file"; next }  # in the place of licence and #pragma once, so that lines keep their numbers
NR == 2 && !own && of_folder { print "@ingroup " of_folder " */"; next }
/^namespace fleet[a-z_:]* \{$/ && group && !is_open { is_open = 1; print $0 " /** @addtogroup " group " */ /** @{ */"; next }
/^\}  \/\/ namespace fleet/ && is_open { is_open = 0; print "/** @} */ " $0; next }
/^ *\/\/\/   +[^ ]/ { sub(/\/\/\/   /, "///       "); behind = 0; print; next }
/[;,{] +\/\/ / && !/^ *\/\// && !/NOLINT/ { sub(/\/\/ /, "///< "); behind = 1; print; next }
behind && /^ +\/\/ / { sub(/\/\/ /, "///< "); print; next }
{ behind = 0; print }
