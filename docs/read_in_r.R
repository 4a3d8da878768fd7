# Vectors in R: Rscript read_in_r.R per-protein.h5, as written by
#   plm-embed export results per-protein.h5 --to uniprot-h5
# Debian and Ubuntu: apt-get install r-cran-hdf5r. Elsewhere: install.packages("hdf5r")
library(hdf5r)

file <- H5File$new(commandArgs(trailingOnly = TRUE)[1], mode = "r")
ids <- names(file)
vectors <- t(sapply(ids, function(id) file[[id]][])) # a row per id, named by it
file$close_all()

unit <- vectors / sqrt(rowSums(vectors^2))
similarity <- unit %*% t(unit) # cosines
print(dim(vectors))
print(round(similarity[1, ], 4))
